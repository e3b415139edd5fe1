"""The comparison of ranks with each other, and the limits for a straggler."""

from ddp_doctor.knowledge.gpu.gpu_speed import FEWEST_TO_JUDGE

__all__ = ["FEWEST_TO_JUDGE"]

#: Samples of each rank, spread over the check. With fewer than the minimum, no rank is reported (judgment: a median of
#: five tolerates two random samples).
SAMPLES, FEWEST_SAMPLES = 7, 5
#: One sample: matrix products, then a spinning loop of two periods of a CPU quota, which is 100 ms by default
#: (docs.kernel.org/scheduler/sched-bwc.html, cfs_period_us).
PRODUCTS_S, SPIN_S = 0.1, 0.2
#: Between two reads of the clock: an interrupt of the timer takes some us, and another task runs for at least the
#: scheduler's smallest slice of 0.1 ms (except SCHED_IDLE; docs.kernel.org/scheduler/sched-eevdf.html).
GAP_S = 1e-4
#: Expected seconds of the first sample, and of its reads, including waits for other ranks (judgment).
SAMPLE_S, READS_S = 0.4, 0.6
#: Share of the budget, or of the check's remaining time, that the samples may take.
SHARE_OF_CHECK = 0.7

#: A straggler takes this many times as long as the usual rank, …: medians of seven samples of four ranks on idle cores
#: differed by 1.1 times at most in 20 runs; dlrover calls a node a straggler at 2.0. Reads differ by more (judgment).
SLOWER, READS_SLOWER = 1.25, 2.0
#: … exceeds this many spreads (1.4826 MAD, which is the standard deviation of a normal distribution; Leys et al., 2013,
#: use 2.5 to 3 of them for an outlier), …
SPREADS, OF_MAD = 4.0, 1.4826
#: … and does so in this share of its samples.
IN_SAMPLES = 0.8
#: Ranks reach different peers over links that are faster by design, so only this ratio counts on NCCL (thresholds.py,
#: SLOW_PAIR_RATIO).
EXCHANGE_SLOWER, EXCHANGE_SLOWER_ON_NCCL = 2.0, 4.0
#: Ranks that wait for a CPU in this share of their time are intermittently slow by chance (four ranks on two cores
#: under a load of 30, 20 runs: medians of ranks differed by up to 2.7 times).
BUSY_SHARE = 0.5

#: Data of the job that one sample reads: at most this many bytes of a large file, and this many small pieces, each for
#: this long; and with this many workers, a common first choice for torch's DataLoader (judgment).
READ_BYTES, READ_FILES, READ_S, WORKERS = 64 << 20, 64, 0.15, 4
#: Reads of the data count as hanging after this time: a mount over NFS waits 60 s before it reports it (nfs(5),
#: timeo=600).
READS_HANG_S = 8.0
#: As a share of READS_HANG_S: a read whose process waited longer than this for a processor is not reported (judgment).
READS_QUEUED_SHARE = 0.5
