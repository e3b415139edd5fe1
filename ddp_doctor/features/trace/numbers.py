"""Numbers of `ddp-doctor trace`: gloo with torch 2.13 and 2.15 on two busy cores, NCCL with torch 2.11 on one H100."""

#: A rank is late if the others lose this share of the step to it. Healthy ranks cost 0 to 10%, each intermittently.
LATE_SHARE = 0.10
#: Minimum share to report ranks that are late in turn. Healthy ranks on two busy cores reached 0.10 to 0.13.
JITTER_SHARE = 0.15
#: Minimum share of the others' loss that the late rank's extra time must explain to report a cause: injected causes
#: explain 0.6 to 1.1 of it.
EXPLAINED_SHARE = 0.5
#: … and this much of a step, which busy processors make of anything.
LEAST_SHARE = 0.05
#: So many times more work (operators, kernels, samples) is more work; healthy ranks have had equal numbers.
MORE_WORK = 1.1
#: Higher limits for a rank that is merely slower with the same or unknown work, because noise looks the same. Healthy
#: ranks on busy cores have cost the others 16% with twice the next, 20% with 1.5 times.
SLOWER_SHARE, SLOWER_TIMES_THE_NEXT = 0.2, 3.0
#: Minimum number of steps to distinguish a slower rank from a single disturbance.
SLOWER_STEPS = 3
#: How many times as long the same operators take: half a processor makes it 2, measured 1.8 to 1.9; healthy ranks on
#: busy cores have reached 1.6. Kernels: a clock that is a fifth lower (judgment).
SLOWER_TIMES, SLOWER_GPU_TIMES = 1.75, 1.25
#: A gap of less is what a scheduler makes: 15 ms between healthy ranks on two busy cores.
PAUSE_US = 20_000.0
#: … and their minimum total; 24 ms was seen on a machine with twelve busy processes on two cores.
PAUSES_US = 50_000.0
#: A pause is one gap: minimum share that the gap has of the rank's extra idle time.
PAUSE_OF_IDLE = 0.7
#: Tensors detached one after another outside of forward: state_dict does it with each, logs with a few.
STATE_DICT_TENSORS = 4
#: If it saves its state, minimum share of the others' loss that being idle has to explain.
SAVING_SHARE = 0.25
#: Spread of the ends of one collective, over the length of a step. Healthy ranks leave within 0.16 of it of each other,
#: even if their clocks differ; two jobs that do the same work at another speed had 0.2 to 0.98.
ENDS_APART = 0.25
#: All-reduces of this size or more, such as DDP's buckets, reach less than this share of a preflight's largest one.
#: Published curves of NCCL have 0.17 to 0.5 at 16 MiB (network/data/published_bandwidth.ini), and concurrent computing
#: costs some.
TRANSFER_BYTES, SLOW_TRANSFER_SHARE = 16 << 20, 0.1

# --- What would make a step faster -----------------------------------------------------------------------

#: A change that brings less at most is not worth a line: steps differ by more from run to run (measured).
WORTH_A_LINE = 0.025
#: Warning limit if the profiler makes the subject of a change up to twice as long (loading, or a GPU that waits for its
#: host). Healthy jobs loaded for 1% to 13% of the step (measured). See also severity.WARNING_SHARE.
HOST_WARNING_SHARE = 0.20
#: Loading is reported if every rank waits for it for this share.
INPUT_SHARE = 0.10
#: Buckets are tiny below 1 MiB, the first bucket's own size, if there are three times as many as by default.
TINY_BYTES = 1 << 20
TINY_TIMES = 3
#: The first bucket is too large at half of all gradients or at this size. Only a custom bucket_cap_mb or one large
#: parameter makes it that large (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES is 1 MiB).
LARGE_FIRST_BYTES = 16 << 20
#: … if this share of backward is over when it is sent: 0.02 to 0.2 by default, 0.95 to 1 with one bucket (measured).
LATE_START = 0.5
#: Minimum share for a hint that the search for unused parameters finds some.
SEARCH_SHARE = 0.10
#: Minimum share to try avoiding copies of gradients; they took 1 to 7% of the steps of small models (measured).
COPIED_BACK_SHARE = 0.08
#: Kernels (operators on a CPU) of the optimizer for each parameter. SGD one after another has 1, foreach 0.02 to 0.15,
#: Adam one after another 7 on a GPU and 26 on a CPU (measured, torch 2.11 and 2.13).
MANY_KERNELS = 4
OPTIMIZER_SHARE = 0.10
#: The GPU idles because of the host. With a profiler every operator takes up to twice its time.
LAUNCH_SHARE = 0.20
FEWEST_KERNELS = 30
#: So much of the host's part of a step, on a CPU trace of all operators, may be the profiler's: a step of small ones
#: took 1.7 times as long, and what has no operators was up to 1.13 times as much of the step without it (measured).
PROFILER_SHARE = 0.4
#: The host's time for a kernel: 31 to 54 us in traces of small models on a GPU, 450 us with Python between layers
#: (measured). Anything longer is more than launching.
LAUNCH_US = 100.0
#: Fewer collectives of some bytes than this are what a job logs.
FEWEST_SMALL = 4
#: Smaller messages take as long as one byte, because they only cost latency (docs/explanation/measurements.md).
SMALL_BYTES = 64 * 1024
#: A collective of unknown size is small if it is not longer: for one number 5 us between V100s (measured), some tens
#: between nodes.
SMALL_US = 100.0
#: Minimum share to report exposed communication: most of a step's time other than computing (judgment).
EXPOSED_SHARE = 0.40
