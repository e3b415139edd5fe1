"""A command for all nodes: starts an agent on each, listens to them, and ends all of them.

Messages to an agent go through its control pipe (started_process.py), its own messages through the starter channel
(starter_channel.py). A Start defines how it is started, by srun or by ssh.
"""

import math
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

from ddp_doctor.model.choices import ExitCode
from ddp_doctor.starters import starter_channel
from ddp_doctor.starters.interruption import calling
from ddp_doctor.starters.started_process import Channel, OpenFiles, Start, end_all
from ddp_doctor.starters.starter_channel import AgentState

#: For the others to end after the head's report has arrived or the run is interrupted.
GRACE_S = 20.0
#: Time for an agent to answer; later, the end of the run does not wait for it. ssh gives up after ten seconds.
_ANSWER_S = 15.0
#: For the last message of an agent whose end srun reports: the two use different paths.
_LAST_WORD_S = 1.0


@dataclass
class Ended:
    """The end of a run over all nodes, as seen by the command that started it."""

    agents: dict[int, AgentState]
    not_started: dict[int, str] = field(default_factory=dict)  # reasons, by node rank
    broken_off: dict[int, str] = field(default_factory=dict)  # agents that began and did not end
    interrupted: bool = False
    timed_out: bool = False

    @property
    def recording(self) -> str | None:
        """The head's recording, or the first agent's that has one; interrupted agents come last."""
        recorded = sorted(
            (rank != 0, agent.code == ExitCode.INTERRUPTED.value, rank)
            for rank, agent in self.agents.items()
            if agent.recording
        )
        return self.agents[recorded[0][2]].recording if recorded else None

    @property
    def recordings_of_absent(self) -> list[str]:
        """The recordings of the agents that, by the head's recording, did not check in."""
        if self.have_met or self.agents[0].recording is None:
            return []
        return [agent.recording for rank, agent in sorted(self.agents.items()) if rank and agent.recording]

    @property
    def refused(self) -> str | None:
        """The reason why the agents would not run."""
        return next((agent.refused for _, agent in sorted(self.agents.items()) if agent.refused), None)

    @property
    def is_headless(self) -> bool:
        """True if the head agent was lost before the nodes had met, and without a report."""
        return 0 in self.absent and self.agents[0].recording is None

    @property
    def absent(self) -> dict[int, str]:
        """The reasons why nodes did not check in, by node rank."""
        if self.have_met:
            return self.not_started
        return self.not_started | {rank: _too_soon(why) for rank, why in self.broken_off.items()}

    @property
    def have_met(self) -> bool:
        """True if the node check-in is over, for at least one node."""
        return any(agent.has_met for agent in self.agents.values())


@dataclass
class FanOut:
    """The agents of one run; ``run`` starts them and returns when all have ended."""

    starts: Sequence[Start]
    hosts: Sequence[str]
    tell: Callable[[str], None]
    timeout_s: float
    join_timeout_s: float = 60.0
    _began: float = field(default_factory=time.monotonic)
    _join_until: float = math.inf  # set when the head agent has answered: then it waits for the others
    _channels: list[Channel] = field(default_factory=list)
    _open_channels: list[Channel] = field(default_factory=list)
    _signals: list[int] = field(default_factory=list)
    _said_to_end: dict[int, tuple[float, str]] = field(default_factory=dict)  # time and message, by node rank
    _reported_to_head: set[int] = field(default_factory=set)
    _headless: bool = False
    _all_are_heard: bool = False
    _ending: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError with one sentence if this process may not open enough pipes."""
        self._files = OpenFiles(len(self.starts))
        self._selector = selectors.DefaultSelector()
        self._until = self._began + self.timeout_s
        self.ended = Ended({rank: AgentState() for start in self.starts for rank in start.node_ranks})

    def run(self) -> Ended:
        """Start all, listen until they have ended, and end the remaining ones. Main thread only."""
        with calling(lambda number, _frame: self._signals.append(number)):
            try:
                for start in self.starts:
                    channel = Channel(start)
                    if channel.process is not None:
                        self._files.as_before(channel.process)
                    self._channels.append(channel)
                    self._open_channels.append(channel)
                    for pipe in channel.pipes[1:]:
                        self._selector.register(pipe, selectors.EVENT_READ, channel)
                while not self._is_over():
                    self._listen(0.1)
                    self._note_what_ended()
                    if not self._all_are_heard and not self._is_any_left():
                        # The last message of each agent has come or will not come, so they may exit.
                        self._all_are_heard = True
                        self._send_all({"heard": True})
                    while self._signals:
                        number = self._signals.pop(0)
                        self._end_within(0.0 if self.ended.interrupted else GRACE_S)  # the user insists
                        self.ended.interrupted = True
                        self._send_all({"signal": number})
            finally:
                for channel in self._channels:
                    channel.let_go()
                end_all(self._channels)
                self._selector.close()
        for channel in self._open_channels:
            words = channel.words or f"no answer within {time.monotonic() - self._began:.0f} s"
            self._note_how_it_ended(channel, words)
        return self.ended

    # --- the loop -------------------------------------------------------------------------------

    def _send_all(self, message: dict[str, object]) -> None:
        for channel in self._channels:
            channel.send(message)

    def _listen(self, timeout_s: float) -> bool:
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            channel: Channel = key.data
            pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]  # nothing but pipes was registered
            try:
                for line in channel.lines(pipe):
                    self._hear(channel, line, is_stdout=pipe is channel.pipes[1])
            except EOFError:
                self._selector.unregister(pipe)
        return bool(ready)

    def _hear(self, channel: Channel, line: bytes, *, is_stdout: bool) -> None:
        message = starter_channel.read(line) if is_stdout else None
        if message is None:
            words = line.decode(errors="replace").strip()
            channel.last_words.extend([words] if words else [])
            for host, why in channel.start.explain(words).items():
                if host in self.hosts:
                    self._note_not_started(self.hosts.index(host), why)
            for host, how in channel.start.ends_by_host(words).items():
                if host in self.hosts:
                    self._said_to_end.setdefault(self.hosts.index(host), (time.monotonic(), how))
        elif message.node_rank in channel.start.node_ranks:
            self.ended.agents[message.node_rank].take(message)
            if message.node_rank == 0:
                self._join_until = min(self._join_until, time.monotonic() + self.join_timeout_s)
                if message.kind == "progress":
                    self.tell(message.text)

    def _note_what_ended(self) -> None:
        over = [of for of in self._open_channels if of.process is None or of.process.poll() is not None]
        for channel in over:
            while self._listen(0.0):  # its last words are in the pipes
                pass
            for pipe in channel.pipes[1:]:
                if pipe in self._selector.get_map():
                    self._selector.unregister(pipe)  # a background ssh (ControlPersist) holds it open
            self._open_channels.remove(channel)
            self._note_how_it_ended(channel, channel.reason)
        for rank, (since, how) in self._said_to_end.items():
            if time.monotonic() > since + _LAST_WORD_S:
                # A program that cannot start prints the reason; srun does not show which task printed it.
                words = next(channel.words for channel in self._channels if rank in channel.start.node_ranks)
                is_reason = words and not self.ended.agents[rank].has_answered
                self._note_gone(rank, f"{how}; the last on stderr: {words}" if is_reason else how)
        for rank, agent in self.ended.agents.items():
            if agent.code is not None and rank != 0 and not self.ended.have_met:
                how = agent.refused or _too_soon(f"exit code {agent.code}")
                self._report_to_head(rank, how)

    def _is_any_left(self) -> bool:
        lost = self.ended.not_started | self.ended.broken_off
        return any(agent.code is None and rank not in lost for rank, agent in self.ended.agents.items())

    def _note_how_it_ended(self, channel: Channel, why: str) -> None:
        for rank in channel.start.node_ranks:
            self._note_gone(rank, why)

    def _note_gone(self, rank: int, why: str) -> None:
        """Record the end of an agent; if its last message is missing, report that to the head."""
        agent = self.ended.agents[rank]
        if agent.code is not None or rank in self.ended.broken_off:
            return
        if not agent.has_answered:
            if not self.ended.interrupted:  # otherwise this command ended it before it could answer
                self._note_not_started(rank, why)
        elif rank == 0 or not self._headless:  # otherwise it was asked to end, perhaps before a report
            self.ended.broken_off[rank] = why
            self._report_to_head(rank, _too_soon(why))

    def _note_not_started(self, rank: int, why: str) -> None:
        if rank in self.ended.not_started or self.ended.agents[rank].has_answered:
            return
        self.ended.not_started[rank] = why
        self.tell(f"{self.hosts[rank]} could not be started: {why}")
        self._send_all({"host": self.hosts[rank], "failed": why})

    def _report_to_head(self, rank: int, why: str) -> None:
        """Report a lost agent to the head, for the check-in; later the head itself detects silent nodes."""
        if rank not in self._reported_to_head:
            self._reported_to_head.add(rank)
            head = next(channel for channel in self._channels if 0 in channel.start.node_ranks)
            head.send({"host": self.hosts[rank], "failed": why})

    # --- the end --------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if not self._open_channels:
            return True
        if self._ending:
            return time.monotonic() > self._until or not any(map(self._is_waited_for, self._open_channels))
        self.ended.timed_out = time.monotonic() > self._until
        if time.monotonic() > self._join_until:
            self._give_up_the_silent()
        has_head = 0 not in self.ended.not_started | self.ended.broken_off
        if not has_head and not self._headless and self._all_have_answered():
            self._headless = True
            self._send_all({"headless": True})
        hopeless = self._headless and 0 in self.ended.not_started  # no node can have met it
        if hopeless or self.ended.timed_out:
            for channel in self._channels:
                channel.let_go()
        if hopeless or self.ended.timed_out or self.ended.agents[0].code is not None:
            self._end_within(GRACE_S)
        return False

    def _is_waited_for(self, channel: Channel) -> bool:
        """Return True if messages of its agents are still expected. Agents that did not answer in time do not count."""
        if time.monotonic() < self._began + _ANSWER_S:
            return not self.ended.not_started.keys() >= set(channel.start.node_ranks)
        begun = [rank for rank in channel.start.node_ranks if rank not in self.ended.not_started]
        spoke = [self.ended.agents[rank] for rank in begun if self.ended.agents[rank].has_answered]
        return bool(spoke) and (len(spoke) == len(begun) or any(agent.code is None for agent in spoke))

    def _silent_node_ranks(self) -> list[int]:
        failed = self.ended.not_started
        return [rank for rank, agent in self.ended.agents.items() if not agent.has_answered and rank not in failed]

    def _give_up_the_silent(self) -> None:
        """Give up silent agents and report the reason to the head, which would not wait longer either."""
        for channel in self._open_channels:
            for rank in set(channel.start.node_ranks).intersection(self._silent_node_ranks()):
                late = f"no answer within {self.join_timeout_s:.0f} s"
                late += f", and {channel.start.name} still runs: the login there may hang"
                self._note_not_started(rank, channel.words or late)

    def _all_have_answered(self) -> bool:
        """Return True if each agent has answered or failed; an agent that does neither in time has failed."""
        late = self._silent_node_ranks()
        if time.monotonic() < self._began + _ANSWER_S:
            return not late
        for rank in late:
            self._note_not_started(rank, f"no answer within {_ANSWER_S:.0f} s")
        return True

    def _end_within(self, seconds: float) -> None:
        self._ending = True
        self._until = time.monotonic() + seconds


class Readers(FanOut):
    """Agents that read their nodes without meeting: none waits for another, and a lost one costs only its own part."""

    def _is_over(self) -> bool:
        if self.ended.interrupted:
            return True
        self.ended.timed_out = time.monotonic() > self._until
        if time.monotonic() > self._began + self.join_timeout_s:
            self._give_up_the_silent()
        return self.ended.timed_out or not self._is_any_left()


def _too_soon(how: str) -> str:
    return f"its agent ended before the roll call was over: {how}"
