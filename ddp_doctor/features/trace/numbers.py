"""Numbers of `ddp-doctor trace`: gloo with torch 2.13 and 2.15 on two busy cores, NCCL with torch 2.11 on one H100."""

#: A rank is late if the others lose this share of the step to it. Healthy ranks cost 0 to 10%, each intermittently.
LATE_SHARE = 0.10
#: Minimum share to report ranks that are late in turn. Healthy ranks on two busy cores reached 0.10 to 0.13.
JITTER_SHARE = 0.15
#: Minimum share of the others' loss that the late rank's extra time must explain to report a cause: injected causes
#: explain 0.6 to 1.1 of it.
EXPLAINED_SHARE = 0.5
#: … and minimum share of a step, because busy processors cause smaller differences everywhere.
LEAST_SHARE = 0.05
#: Minimum ratio of operators, kernels or samples that counts as more work; healthy ranks have had equal numbers.
MORE_WORK = 1.1
#: Higher limits for a rank that is merely slower with the same or unknown work, because noise looks the same. Healthy
#: ranks on busy cores have cost the others 16% (twice the next rank) and 20% (1.5 times the next rank).
SLOWER_SHARE, SLOWER_TIMES_THE_NEXT = 0.2, 3.0
#: Minimum number of steps to distinguish a slower rank from a single disturbance.
SLOWER_STEPS = 3
#: Minimum ratio of the durations of the same operators. Half a processor makes them twice as long, measured 1.8 to 1.9;
#: healthy ranks on busy cores have reached 1.6. For kernels: a clock that is a fifth lower (judgment).
SLOWER_TIMES, SLOWER_GPU_TIMES = 1.75, 1.25
#: Minimum gap that counts as a pause. The scheduler makes shorter ones: 15 ms between healthy ranks on two busy cores.
PAUSE_US = 20_000.0
#: … and minimum total of the pauses; 24 ms was seen on a machine with twelve busy processes on two cores.
PAUSES_US = 50_000.0
#: Minimum share that the longest gap must have of the rank's extra idle time to be called a pause.
PAUSE_OF_IDLE = 0.7
#: Number of tensors detached one after another outside of forward: state_dict detaches every tensor, logs only a few.
STATE_DICT_TENSORS = 4
#: For a rank that saves its state: minimum share of the others' loss that its idle time must explain.
SAVING_SHARE = 0.25
#: Maximum spread of the ends of one collective, as a share of the step. Healthy ranks leave within 0.16 of the step,
#: even if their clocks differ; two jobs that do the same work at another speed had 0.2 to 0.98.
ENDS_APART = 0.25
#: Slow transfer: all-reduces of at least this size, such as DDP's buckets, reach less than this share of a preflight's
#: largest one. Published curves of NCCL have 0.17 to 0.5 at 16 MiB (network/data/published_bandwidth.ini), and
#: concurrent computing also takes some of the bandwidth.
TRANSFER_BYTES, SLOW_TRANSFER_SHARE = 16 << 20, 0.1

# --- What would make a step faster -----------------------------------------------------------------------

#: Minimum bound of a change to report it: steps vary by more from run to run (measured).
WORTH_A_LINE = 0.025
#: Warning limit if the profiler makes the subject of a change up to twice as long (loading, or a GPU that waits for its
#: host). Healthy jobs loaded for 1% to 13% of the step (measured). See also severity.WARNING_SHARE.
HOST_WARNING_SHARE = 0.20
#: Minimum share of the step that every rank must wait for its loader.
INPUT_SHARE = 0.10
#: Buckets are tiny below 1 MiB, the first bucket's own size, if there are three times as many as by default.
TINY_BYTES = 1 << 20
TINY_TIMES = 3
#: The first bucket is too large if it has half of all gradients or this size. Only a custom bucket_cap_mb or one large
#: parameter makes it that large (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES is 1 MiB).
LARGE_FIRST_BYTES = 16 << 20
#: … and if this share of backward is over when it is sent: by default 0.02 to 0.2, with one bucket 0.95 to 1
#: (measured).
LATE_START = 0.5
#: Minimum share to mention that the search for unused parameters does find some.
SEARCH_SHARE = 0.10
#: Minimum share to recommend avoiding copies of gradients; they took 1 to 7% of the steps of small models (measured).
COPIED_BACK_SHARE = 0.08
#: Minimum number of the optimizer's kernels per parameter (on a CPU: operators). SGD one by one has 1, foreach 0.02 to
#: 0.15, Adam one by one 7 on a GPU and 26 on a CPU (measured, torch 2.11 and 2.13).
MANY_KERNELS = 4
OPTIMIZER_SHARE = 0.10
#: For a GPU that idles because of the host. The profiler makes every operator take up to twice as long.
LAUNCH_SHARE = 0.20
FEWEST_KERNELS = 30
#: Share of the host's part of a step (on a CPU trace, of all operators) that may be caused by the profiler: a step of
#: small operators took 1.7 times as long, and the part without operators was up to 1.13 times as much of the step as
#: without the profiler (measured).
PROFILER_SHARE = 0.4
#: Maximum host time per kernel that counts as launching: 31 to 54 us in traces of small models on a GPU, 450 us with
#: Python between layers (measured).
LAUNCH_US = 100.0
#: Minimum number of small collectives to report; a job that logs values calls fewer.
FEWEST_SMALL = 4
#: Smaller messages take as long as one byte, because they only cost latency (docs/explanation/measurements.md).
SMALL_BYTES = 64 * 1024
#: Maximum duration of a small collective if its size is unknown: for one number 5 us between V100s (measured), some
#: tens between nodes.
SMALL_US = 100.0
#: Minimum share to report exposed communication: most of a step's time other than computing (judgment).
EXPOSED_SHARE = 0.40
