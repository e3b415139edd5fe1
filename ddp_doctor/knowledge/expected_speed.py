"""When an all-reduce counts as far slower than its path."""

#: Below this an all-reduce is bound by latency: eight A100 reach 73 % of their best busbw at 64 MiB, eight
#: H200 72 %, eight B200 47 % (stas00/ml-engineering, network benchmarks).
LEAST_BYTES = 64 << 20

#: A third of what NCCL's own constants give for the slowest link: DESIGN calls that an error among peers.
#: The constants are no measurement, so it is a warning here.
FAR_BELOW = 3.0

#: Settings that keep NCCL from moving more at once, or from another way to move it (NCCL user guide, environment
#: variables); without them it chooses by the size of the message and the links.
BOUNDING = (
    *("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_NTHREADS", "NCCL_BUFFSIZE"),
    *("NCCL_ALGO", "NCCL_PROTO"),
)
