"""The evidence of a trial: data about each rank, without an evaluation.

A trial is one world of new worker processes that ran some rank checks in order. The judge (engine/hang/judge.py) reads
only this, live and on replay.
"""

from typing import Literal

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.finding import Reproducer, Setting

#: The step of making a rank's process group.
INIT = "init_process_group"


class Step(Frozen):
    """A step that a rank entered: a collective, a barrier, a phase of a check."""

    check: str  # its id
    name: str  # its operation: all_reduce, send, init_process_group, backward …
    seq: int  # counts the steps of one check on one rank; steps with equal numbers meet
    detail: str = ""  # shape, dtype, peer: must be equal on the ranks that meet
    peers: tuple[int, ...] = ()  # original ranks that this step needs; empty means all of the trial
    axis: str = ""  # axis of a mesh, whose groups do this step separately
    members: tuple[int, ...] = ()  # … the original ranks of this rank's group; empty means all of the trial
    entered_at: float = 0.0  # seconds since the trial began
    left_at: float | None = None  # the same; null if the rank is still in the step
    queued_s: float = 0.0  # how long its main thread had no processor since it entered its previous step
    where: str = ""  # file:line of the call

    @property
    def key(self) -> tuple[str, int]:
        """The key of a step, equal on the ranks that meet. The group is made before its check begins to count."""
        return self.check, 0 if self.name == INIT else self.seq


class FlightEntry(Frozen):
    """An entry of torch's flight recorder: the collective that the rank really enqueued."""

    seq: int  # counts the collectives of its group
    op: str  # "all_reduce", without the backend prefix
    sizes: tuple[tuple[int, ...], ...] = ()  # shapes of the tensors
    dtypes: tuple[str, ...] = ()  # torch's names of their types
    retired: bool = False  # whether torch saw it end
    group: str = ""  # torch's name of the process group, which numbers its collectives separately
    #: Not retired in two samples, far enough apart for a recorder that retires late; null: sampled once.
    open_twice: bool | None = None

    @property
    def is_open(self) -> bool:
        """Return True if the rank still waits for the collective, according to the recorder."""
        return not self.retired if self.open_twice is None else self.open_twice


class Raised(Frozen):
    """An exception that ended a probe on a rank."""

    type: str  # its class
    message: str  # its text
    where: str = ""  # innermost file:line outside torch
    blames_peer: bool = False  # a broken connection or a timeout, caused by a peer
    at: float = 0.0  # seconds since the trial began


class RankEvidence(Frozen):
    """The evidence of one rank when its trial ended or was evaluated."""

    rank: int  # the rank in the first trial; later trials keep it
    node: int = 0  # node rank
    pid: int = 0  # on its node
    began: bool = False  # the worker process has reported
    done: bool = False  # finished everything that it was asked to do
    check: str = ""  # the check the rank was in
    steps: tuple[Step, ...] = ()  # the last steps, oldest first
    raised: Raised | None = None  # the exception that ended it
    exit_code: int | None = None  # null while it runs; negative is a signal
    exited_at: float | None = None  # seconds since the trial began
    state: str | None = None  # R, S, D, T, t, Z as in /proc/PID/stat
    wait_channel: str | None = None  # the kernel function that it waits in: /proc/PID/wchan
    cpu_s_per_s: float | None = None  # processor time used in the last second of watching
    #: Processor time of its main thread since its check began, as a share of running and waiting for a processor.
    #: None if both are short, or the kernel does not count them.
    cpu_granted: float | None = None
    stack: tuple[str, ...] = ()  # "file:line in function", innermost last
    source: tuple[str, ...] = ()  # the text of each of these lines; "" for code that is not the job's
    flight: tuple[FlightEntry, ...] = ()  # the last entries of torch's flight recorder
    recorder: str | None = None  # the flight recorder that had them; null: no recorder had any
    output_tail: str = ""  # the end of the output of the process and NCCL
    out_of_memory: bool = False  # the memory cgroup counted an OOM kill when this rank died

    @property
    def open_step(self) -> Step | None:
        """The step that the rank entered and has not left."""
        last = self.steps[-1] if self.steps else None
        return last if last is not None and last.left_at is None else None


class TrialRecord(Frozen):
    """A trial: its ranks, its plan and its outcome."""

    trial: str  # its name, such as t1
    launcher: Literal["forkserver", "torchrun"] = "forkserver"  # what started its ranks
    backend: str = "gloo"  # of its ranks
    ranks: tuple[int, ...] = ()  # original rank numbers
    checks: tuple[str, ...] = ()  # their ids, in order
    outcome: Literal["finished", "stuck", "broken", "slow", "interrupted"] = "finished"  # how it ended
    judged_check: str | None = None  # the check that got stuck or broke
    waited_s: float = 0.0  # how long that check's ranks had been waiting when it was evaluated
    duration_s: float = 0.0  # in seconds
    evidence: tuple[RankEvidence, ...] = ()  # the evidence of each rank
    notes: tuple[str, ...] = ()  # other observations
    lost_nodes: tuple[int, ...] = ()  # node ranks that stopped responding while it ran
    without_parts: tuple[str, ...] = ()  # parts of a check that earlier trials had read, or hung in
    reproducer: Reproducer | None = None  # for a trial of a fix: everything that its ranks do
    settings: tuple[Setting, ...] = ()  # … the settings in force
    limit_s: float | None = None  # … the time after which it counts as hung


Arm = Literal["control", "treatment"]


class Attempt(Frozen):
    """A trial in new processes; ``control`` has the original environment."""

    arm: Arm  # with the fix (treatment) or without (control)
    outcome: Literal["passed", "hung", "failed"]  # how it ended
    bytes_per_s: float | None = None  # of the slowest rank, the median of its repetitions
    reason: str = ""  # what a failed rank reported
    unread: tuple[str, ...] = ()  # settings of the treatment that the library did not report as read
    duration_s: float = 0.0  # in seconds


class Experiment(Frozen):
    """The attempts to prove one fix of one finding. Without attempts, ``reason`` explains why."""

    code: str  # the finding's
    settings: tuple[Setting, ...]  # the fix's
    reproducer: Reproducer  # what was repeated
    attempts: tuple[Attempt, ...] = ()  # in the order they were made
    reason: str | None = None  # why it was not tested
