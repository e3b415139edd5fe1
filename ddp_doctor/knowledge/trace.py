"""Numbers of `ddp-doctor trace`."""

# --- What would make a step faster -----------------------------------------------------------------------

#: A change that brings less at most is not worth a line: steps differ by as much from run to run (measured).
WORTH_A_LINE = 0.03
#: From here on a change is a warning: what costs less is no fault.
WARNING_SHARE = 0.10
#: Loading is the input's fault where every rank waits for it so long; healthy jobs have had 1 to 9 % (measured).
INPUT_SHARE = 0.10
#: Buckets are tiny below 1 MiB, the first bucket's own size, where there are three times as many as by default.
TINY_BYTES = 1 << 20
TINY_TIMES = 3
#: The first bucket is too large from half of all gradients on, or from this size, which only a bucket_cap_mb of one's
#: own or one large parameter makes (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES is 1 MiB).
LARGE_FIRST_BYTES = 16 << 20
#: … if so much of backward is over when it is sent. By default it was 0.02 to 0.2, with one bucket 0.95 to 1 (measured).
LATE_START = 0.5
#: Looking for parameters that are unused indeed is worth a hint from here on.
SEARCH_SHARE = 0.10
#: Copying gradients back took 1.2 to 4.4 % of the steps of small models (measured): from here on it is worth a trial.
COPIED_BACK_SHARE = 0.05
#: Kernels (operators on a CPU) of the optimizer for each parameter. SGD one after another has 1, foreach 0.02 to 0.15,
#: Adam one after another 7 on a GPU and 26 on a CPU (measured, torch 2.11 and 2.13).
MANY_KERNELS = 4
OPTIMIZER_SHARE = 0.10
#: The GPU idles for the host. Beside a profiler every operator takes up to twice its time.
LAUNCH_SHARE = 0.20
#: The host's time for a kernel: 31 to 54 us in traces of small models on a GPU, 450 us with Python between layers
#: (measured). What takes longer than this is more than launching.
LAUNCH_US = 100.0
#: Fewer collectives of some bytes than this are what a job logs.
FEWEST_SMALL = 4
#: What is smaller takes as long as one byte: latency is all that it costs (docs/explanation/collectives.md).
SMALL_BYTES = 64 * 1024
#: Without its size a collective is small that takes no longer: 16 of its kernels' launches.
SMALL_US = 100.0
#: Communication is a third of the step or more: without it the step would be half as fast again (judgement).
EXPOSED_SHARE = 0.33
