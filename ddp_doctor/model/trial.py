"""What a trial leaves behind: the evidence of each rank, without opinion.

A trial is one world of fresh worker processes that ran some rank checks in order. The judge
(engine/hang/judge.py) reads nothing but this, live and on replay.
"""

from typing import Literal

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.finding import Reproducer, Setting

#: The step in which a rank makes its process group.
INIT = "init_process_group"


class Step(Frozen):
    """One step that a rank entered: a collective, a barrier, a phase of a check."""

    check: str  # its id
    name: str  # the field's word: all_reduce, send, init_process_group, backward …
    seq: int  # counts the steps of one check on one rank; steps with equal numbers meet
    detail: str = ""  # shape, dtype, peer: what must agree between the ranks that meet
    peers: tuple[int, ...] = ()  # original ranks this step needs; empty means all of the trial
    axis: str = ""  # of a mesh, of whose groups each does this step by itself
    members: tuple[int, ...] = ()  # … the original ranks of this rank's group; empty means all of the trial
    entered_at: float = 0.0  # seconds since the trial began
    left_at: float | None = None  # the same; null where it is in the step still
    queued_s: float = 0.0  # for how long its main thread had no processor since it entered its previous step
    where: str = ""  # file:line of the call

    @property
    def key(self) -> tuple[str, int]:
        """What makes two ranks' steps the same one; the group is made before its check begins to count."""
        return self.check, 0 if self.name == INIT else self.seq


class FlightEntry(Frozen):
    """One entry of torch's flight recorder: the collective that the rank really enqueued."""

    seq: int  # counts the collectives of its group
    op: str  # "all_reduce", without the backend prefix
    sizes: tuple[tuple[int, ...], ...] = ()  # shapes of the tensors
    dtypes: tuple[str, ...] = ()  # torch's names of their types
    retired: bool = False  # whether torch saw it end
    group: str = ""  # torch's name of the process group, whose collectives are numbered by themselves
    #: Un-retired in two samples, far enough apart for a recorder that retires late; None: sampled once.
    open_twice: bool | None = None

    @property
    def is_open(self) -> bool:
        """Whether the rank still waits for it, as far as the recorder shows."""
        return not self.retired if self.open_twice is None else self.open_twice


class Raised(Frozen):
    """An exception that ended a probe on a rank."""

    type: str  # its class
    message: str  # what it says
    where: str = ""  # innermost file:line outside torch
    blames_peer: bool = False  # a broken connection or a time-out: a victim's message, not a cause
    at: float = 0.0  # seconds since the trial began


class RankEvidence(Frozen):
    """What is known about one rank when its trial ended or was judged."""

    rank: int  # the rank in the first trial; later trials keep it
    node: int = 0  # node rank
    pid: int = 0  # on its node
    began: bool = False  # the worker process reported in at all
    done: bool = False  # did all it was asked to
    check: str = ""  # the check the rank was in
    steps: tuple[Step, ...] = ()  # the last steps, oldest first
    raised: Raised | None = None  # what ended it, where that was an exception
    exit_code: int | None = None  # None while alive; negative is a signal
    exited_at: float | None = None  # seconds since the trial began
    state: str | None = None  # R, S, D, T, t, Z as in /proc/PID/stat
    wait_channel: str | None = None  # where it waits in the kernel: /proc/PID/wchan
    cpu_s_per_s: float | None = None  # processor time used in the last second of watching
    #: Processor time of its main thread since its check began, as a share of running and waiting for a processor.
    #: None if both are short, or the kernel does not count them.
    cpu_granted: float | None = None
    stack: tuple[str, ...] = ()  # "file:line in function", innermost last
    source: tuple[str, ...] = ()  # the text of each of these lines; "" for what is no code of the job's
    flight: tuple[FlightEntry, ...] = ()  # the last entries of torch's flight recorder
    recorder: str | None = None  # the flight recorder that had them; None: none had any
    output_tail: str = ""  # the end of what the process and NCCL printed
    out_of_memory: bool = False  # the memory cgroup counted an OOM kill when this rank died

    @property
    def open_step(self) -> Step | None:
        """The step that the rank entered and has not left."""
        last = self.steps[-1] if self.steps else None
        return last if last is not None and last.left_at is None else None


class TrialRecord(Frozen):
    """One trial: which ranks took part, what was planned, how it ended."""

    trial: str  # its name, such as t1
    launcher: Literal["forkserver", "torchrun"] = "forkserver"  # who started its ranks
    backend: str = "gloo"  # of its ranks
    ranks: tuple[int, ...] = ()  # original rank numbers
    checks: tuple[str, ...] = ()  # their ids, in order
    outcome: Literal["finished", "stuck", "broken", "slow", "interrupted"] = "finished"  # how it ended
    judged_check: str | None = None  # the check in which it got stuck or broke
    waited_s: float = 0.0  # how long that check's ranks had been waiting when judged
    duration_s: float = 0.0  # in seconds
    evidence: tuple[RankEvidence, ...] = ()  # what is known of each rank
    notes: tuple[str, ...] = ()  # what else was seen
    lost_nodes: tuple[int, ...] = ()  # node ranks that fell silent while it ran
    without_parts: tuple[str, ...] = ()  # of a check of several: what earlier trials had read, or hung in
    reproducer: Reproducer | None = None  # of a trial that tries a remedy: all that its ranks do
    settings: tuple[Setting, ...] = ()  # … in force in it
    limit_s: float | None = None  # … after which it has hung


Arm = Literal["control", "treatment"]


class Attempt(Frozen):
    """One trial in fresh processes; ``control`` is the environment as it was."""

    arm: Arm  # with the remedy (treatment) or without (control)
    outcome: Literal["passed", "hung", "failed"]  # how it ended
    bytes_per_s: float | None = None  # of the slowest rank, the median of its repetitions
    reason: str = ""  # what a failed rank reported
    unread: tuple[str, ...] = ()  # settings of the treatment that the library did not say it had read
    duration_s: float = 0.0  # in seconds


class Experiment(Frozen):
    """The attempts to prove one remedy of one finding; without any, ``reason`` says why."""

    code: str  # the finding's
    settings: tuple[Setting, ...]  # the remedy's
    reproducer: Reproducer  # what was repeated
    attempts: tuple[Attempt, ...] = ()  # in the order in which they were made
    reason: str | None = None  # why it was not tried
