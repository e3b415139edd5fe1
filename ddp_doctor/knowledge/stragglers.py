"""How ranks are measured beside each other, and from when one counts as a straggler."""

from ddp_doctor.knowledge.gpu.gpu_speed import FEWEST_TO_JUDGE

__all__ = ["FEWEST_TO_JUDGE"]

#: Samples of each rank, spread over the check; with fewer than the least nobody is named (judgment: a median of five
#: stands two samples of chance).
SAMPLES, FEWEST_SAMPLES = 7, 5
#: One sample: matrix products, then a spinning loop of two periods of a CPU quota, which is 100 ms by default
#: (docs.kernel.org/scheduler/sched-bwc.html, cfs_period_us).
PRODUCTS_S, SPIN_S = 0.1, 0.2
#: Between two reads of the clock: an interrupt of the timer takes some us, what another task runs for at least the
#: scheduler's smallest slice of 0.1 ms (SCHED_IDLE aside; docs.kernel.org/scheduler/sched-eevdf.html).
GAP_S = 1e-4
#: Seconds that the first sample is taken to last, and its reads, waits for other ranks included (judgment).
SAMPLE_S, READS_S = 0.4, 0.6
#: Of the budget, or of the check's time that is left, how much the samples may take.
SHARE_OF_CHECK = 0.7

#: A straggler takes so many times as long as the usual rank, …: medians of seven samples of four ranks on calm cores
#: were 1.1 apart at most in 20 runs; dlrover calls a node a straggler at 2.0. Reads differ by more (judgment).
SLOWER, READS_SLOWER = 1.25, 2.0
#: … beyond so many spreads (1.4826 MAD, which is the standard deviation where chance is normal; Leys et al., 2013, who
#: take 2.5 to 3 of them for an outlier), …
SPREADS, OF_MAD = 4.0, 1.4826
#: … and in so many of its samples.
IN_SAMPLES = 0.8
#: Ranks reach different peers over links that are faster by design, so that only this counts on NCCL (thresholds.py,
#: SLOW_PAIR_RATIO).
EXCHANGE_SLOWER, EXCHANGE_SLOWER_ON_NCCL = 2.0, 4.0
#: Ranks that wait so much of their time for a CPU are slow now and then by chance (four ranks on two cores
#: under a load of 30, 20 runs: medians of ranks up to 2.7 times apart).
BUSY_SHARE = 0.5

#: What one sample reads of the job's data: at most so many bytes of a large file, and so many small pieces, for so long
#: each; and with so many workers, as users of torch's DataLoader begin with (judgment).
READ_BYTES, READ_FILES, READ_S, WORKERS = 64 << 20, 64, 0.15, 4
#: When a look at the data counts as hanging: a mount over NFS waits 60 s before it says so (nfs(5), timeo=600).
READS_HANG_S = 8.0
#: As a share of READS_HANG_S: do not blame a read whose process waited longer than this for a processor (judgment).
READS_QUEUED_SHARE = 0.5
