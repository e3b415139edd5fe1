"""The agent's view of one rank: built from its events, its process and, at the end, its evidence."""

import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median
from typing import Protocol

from ddp_doctor.knowledge.deadlines import LATE_ENTRY_S, LOOK_S
from ddp_doctor.model.base import Json, grouped
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.trial import FlightEntry, Raised, RankEvidence, Step
from ddp_doctor.parse.frames import fatal_stack, of_the_job
from ddp_doctor.parse.nccl_log import digest
from ddp_doctor.parse.redact import KEPT_BACK, is_withheld
from ddp_doctor.ranks.events import EventReader
from ddp_doctor.ranks.spec import WorkerSpec
from ddp_doctor.sources import proc

#: Number of steps kept per rank: enough to see where the ranks diverged, small enough for thousands of ranks.
_STEPS_KEPT = 40
_OUTPUT_KEPT = 4000
#: Number of bytes read to get this output: Python lists all modules after the stacks of a process that crashed.
_OUTPUT_READ = 64 << 10
_LONGEST_LINE = 120  # characters of a line of the job's code
#: Bytes of NCCL's log that are read; the log of a rank with thousands of peers is longer.
_NCCL_LOG_READ = 8 << 20
#: Lines that torch also prints in healthy runs: about a name that older releases know, and hosts without reverse DNS.
_CHATTER = (
    "TORCH_NCCL_TRACE_BUFFER_SIZE is deprecated",
    "hostname of the client socket cannot be retrieved",
    "Extension modules: ",  # printed by Python after the stacks of a crashed process
)


class Worker(Protocol):
    """The process of a rank, started by the forkserver or torchrun."""

    @property
    def pid(self) -> int | None:
        """The pid, or None until it is known."""

    @property
    def exitcode(self) -> int | None:
        """The exit code, or None while the process lives; a negative value is a signal."""


@dataclass
class RankState:
    """The agent's knowledge about one rank so far. Times are monotonic seconds."""

    spec: WorkerSpec
    worker: Worker
    began_at: float  # of the trial
    reader: EventReader
    check: str = ""
    check_at: float = 0.0
    last_event_at: float = 0.0
    steps: list[Step] = field(default_factory=list)
    step_deadlines: dict[tuple[str, int], float] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    began: bool = False
    done: bool = False
    raised: Raised | None = None
    exited_at: float | None = None
    cpu_s_per_s: float | None = None
    cpu_granted: float | None = None
    spent_before: tuple[float, float] = (0.0, 0.0)  # run_and_queued_s() when its check began
    queued_before_s: float = 0.0  # how long its main thread had no processor until its last step
    events: int = 0  # number of events so far
    state: str | None = None
    wait_channel: str | None = None
    first_answer: dict[str, Json] | None = None  # of two to the agent's request for evidence

    @property
    def over(self) -> bool:
        """True if no more events are expected of this rank."""
        return self.done or self.raised is not None or self.exited_at is not None

    @property
    def open_step(self) -> Step | None:
        """The step that the rank entered and has not left."""
        last = self.steps[-1] if self.steps else None
        return last if last is not None and last.left_at is None else None

    def absorb(self, now: float) -> bool:
        """Take new events and the process's end; return True if anything was new."""
        events = self.reader.new()
        self.events += len(events)
        for event in events:
            self.last_event_at = event["t"]
            self._take(event)
        if self.exited_at is None and self.worker.exitcode is not None and not self.done:
            self.exited_at = now
            return True
        return bool(events)

    def _take(self, event: dict[str, Json]) -> None:
        kind, at = event["event"], event["t"]
        if kind == "begin":
            self.began = True
        elif kind == "check":
            self.check, self.check_at = event["check"], at
            self.spent_before = proc.run_and_queued_s(self.worker.pid or 0)
        elif kind == "enter":
            queued_s = round(event["queued_s"] - self.queued_before_s, 3)
            self.queued_before_s = event["queued_s"]
            step = Step.model_validate({**event, "entered_at": at - self.began_at, "queued_s": queued_s})
            if event["deadline_s"] is not None:
                self.step_deadlines[step.check, step.seq] = at + event["deadline_s"]
            self.steps.append(step)
        elif kind == "leave":
            for index in reversed(range(len(self.steps))):
                step = self.steps[index]
                if (step.check, step.seq) == (event["check"], event["seq"]):
                    self.steps[index] = step.model_copy(update={"left_at": at - self.began_at})
                    return
        elif kind == "reading":
            self.readings.append(Reading.model_validate(event["reading"]))
        elif kind == "raised":
            raised = Raised.model_validate(event)
            self.raised = raised.model_copy(update={"at": raised.at - self.began_at})
        elif kind == "done":
            self.done = True

    def queued_s(self) -> float:
        """Return for how long its main thread has been ready to run without a processor since its check began."""
        ran_s, queued_s = (
            max(now - before, 0.0)
            for now, before in zip(proc.run_and_queued_s(self.worker.pid or 0), self.spent_before, strict=True)
        )
        wanted_s = ran_s + queued_s
        self.cpu_granted = round(ran_s / wanted_s, 3) if wanted_s >= LOOK_S else None
        return queued_s

    def printed(self) -> int:
        """Return the number of bytes that the rank and NCCL have printed: NCCL's log grows while it still works."""
        size_bytes = 0
        for suffix in ("out", "nccl"):
            with suppress(OSError):  # missing or already removed
                size_bytes += os.stat(self.spec.path(suffix)).st_size
        return size_bytes

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this rank's process if it still is a child and alive."""
        if self.worker.pid is not None and self.worker.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.worker.pid, number)

    def evidence(self, out_of_memory: bool) -> RankEvidence:
        """Return the rank's evidence for the recording."""
        answer = self._stack_dump() or self.first_answer or {}
        died = self.exited_at is not None
        fatal = fatal_stack(_tail(self.spec.path("out"), _OUTPUT_READ)) if died else ()
        return RankEvidence(
            rank=self.spec.rank,
            node=self.spec.node,
            pid=self.worker.pid or 0,
            began=self.began,
            done=self.done,
            check=self.check,
            steps=tuple(self.steps[-_STEPS_KEPT:]),
            raised=self.raised,
            exit_code=self.worker.exitcode if died else None,
            exited_at=self.exited_at - self.began_at if self.exited_at is not None else None,
            state=self.state,
            wait_channel=self.wait_channel,
            cpu_s_per_s=self.cpu_s_per_s,
            cpu_granted=self.cpu_granted,
            stack=tuple(answer.get("stack", ())) or self._faulthandler_stack() or fatal,
            source=_source(answer.get("stack", ()), answer.get("source", ())),
            flight=self._flight_entries(answer),
            recorder=answer.get("recorder"),
            output_tail=self._output(),
            out_of_memory=out_of_memory and died and self.worker.exitcode == -signal.SIGKILL,
        )

    def has_to_answer_twice(self) -> bool:
        """Return True if its answer has open work in a flight recorder that retires finished work late."""
        answer = self._stack_dump()
        flight = answer.get("flight", ())
        return bool(answer.get("retires_late")) and any(not entry["retired"] for entry in flight)

    def keep_first_answer(self) -> None:
        """Store the first answer, to make room for the second one."""
        self.first_answer = self._stack_dump()
        with suppress(OSError):
            os.unlink(self.spec.path("stack_dump.json"))

    def _flight_entries(self, answer: Mapping[str, Json]) -> tuple[FlightEntry, ...]:
        """Return the flight recorder's entries, from the second of two samples; work open in both is marked."""
        entries = tuple(FlightEntry.model_validate(entry) for entry in answer.get("flight", ()))
        if self.first_answer is None or answer is self.first_answer:
            return entries
        open_before = {entry["seq"] for entry in self.first_answer["flight"] if not entry["retired"]}
        return tuple(
            entry.model_copy(update={"open_twice": not entry.retired and entry.seq in open_before}) for entry in entries
        )

    def has_stack_dump(self) -> bool:
        """Return True if the rank's second thread has answered."""
        return os.path.exists(self.spec.path("stack_dump.json"))

    def _output(self) -> str:
        """Return the end of the rank's output, unless it finished, and NCCL's choices from its log in any case."""
        lines = _tail(self.spec.path("out"), _OUTPUT_READ).splitlines(keepends=True)
        kept = [line for line in lines if not any(words in line for words in _CHATTER)]
        tail = "".join(f"{KEPT_BACK}\n" if is_withheld("", line) else line for line in kept)[-_OUTPUT_KEPT:]
        if self.spec.backend != "nccl":
            return tail if not self.done else ""
        # NCCL up to 2.21 prints its version only to stdout; under torchrun there is no file.
        texts = [_head(self.spec.path(suffix), _NCCL_LOG_READ) for suffix in ("out", "nccl")]
        choices = digest(line for text in texts for line in text.splitlines())
        return choices if self.done else f"{choices}\n{_tail(self.spec.path('nccl'))}\n{tail}"

    def _stack_dump(self) -> dict[str, Json]:
        with suppress(OSError, ValueError), open(self.spec.path("stack_dump.json"), encoding="utf-8") as file:
            answer: dict[str, Json] = json.load(file)
            return answer
        return {}

    def _faulthandler_stack(self) -> tuple[str, ...]:
        # The thread that got the signal, the main thread, is printed last, innermost line first.
        lines = _tail(self.spec.path("stacks")).rpartition("(most recent call first):")[2].splitlines()
        # ``"train.py", line 88 in step``
        frames = re.findall(r'^\s*File "?(.*?)"?, line (.*?) in (.*?)\s*$', "\n".join(lines), re.MULTILINE)
        return tuple(f"{path}:{number} in {name}" for path, number, name in reversed(frames))


def _source(stack: Sequence[str], lines: Sequence[str]) -> tuple[str, ...]:
    """Return the text of the lines of the job's own code, without credentials; empty if there are none."""
    own = set(of_the_job(stack))
    texts = tuple(
        (KEPT_BACK if is_withheld("", line) else line[:_LONGEST_LINE]) if frame in own else ""
        for frame, line in zip(stack, lines, strict=False)
    )
    return texts if any(texts) else ()


def _head(path: str, most: int) -> str:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(most).decode(errors="replace")
    return ""


def _tail(path: str, most: int = _OUTPUT_KEPT) -> str:
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - most, 0))
        return file.read().decode(errors="replace")
    return ""


def late_steps(evidence: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Keep only steps that some rank entered LATE_ENTRY_S after the median rank, and the step before each of them.

    A slow link in the step before makes a rank late without a fault of the rank.
    """
    entered = grouped(((step.check, step.seq), step.entered_at) for rank in evidence for step in rank.steps)
    late = {key for key, times in entered.items() if max(times) - median(times) > LATE_ENTRY_S}
    kept = []
    for rank in evidence:
        steps = tuple(
            step
            for step, after in zip_longest(rank.steps, rank.steps[1:])
            if (step.check, step.seq) in late or (after is not None and (after.check, after.seq) in late)
        )
        kept.append(rank.model_copy(update={"steps": steps}))
    return kept
