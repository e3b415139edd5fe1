"""Find out, when the beats of an agent stop, which agents still reach it and how its host answers direct connections.

The beats over the store show only that two ends do not reach each other. Before a node is named, the others dial its
listener, so that a lost node can be distinguished from a broken path.
"""

import errno
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddp_doctor.agents import messages
from ddp_doctor.agents.agent_group import AgentGroup
from ddp_doctor.agents.messages import Contact
from ddp_doctor.agents.store_client import HEAD
from ddp_doctor.facts.cluster import Answer, SilenceFact
from ddp_doctor.knowledge.deadlines import CONFIRM_S
from ddp_doctor.model.base import Json
from ddp_doctor.model.fact import Reading
from ddp_doctor.sources import network, sockets

_ALIVE = {"question": "alive"}
#: After a head was lost: a survivor's answer about it counts this much later.
_NOTICED_S = 1.5
#: The silence of a store that broke off, in seconds; JSON has no infinity.
_LONG_S = 1e6
#: Errors of dialing a listener. ETIME: the host accepted the connection, and no answer came.
_ANSWERS: dict[int, Answer] = {
    errno.ETIME: "silent",
    errno.ETIMEDOUT: "timed_out",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
}


def links_up() -> frozenset[str]:
    """Return this host's interfaces that have a link."""
    return frozenset(interface.name for interface in network.interfaces() if interface.running)


@dataclass
class Watch:
    """Watches for lost nodes. Its thread answers the head's question whether a silent node answers this one."""

    group: AgentGroup
    contacts: Mapping[int, Contact]
    secret: str
    links_before: frozenset[str] = field(default_factory=links_up)
    _asked: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Begin to answer the head's questions (followers only)."""
        threading.Thread(target=self._stand_by, daemon=True).start()

    def answer(self, _question: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the answer of this agent's listener to another agent on a direct connection."""
        silent_s = max(self.group.silent_s(0), self.group.client.store_silent_s())
        return {"rank": self.group.my_rank, "head_silent_s": min(silent_s, _LONG_S)}

    def about(self, lost: Sequence[int]) -> list[Reading]:
        """Return readings about nodes whose beats no longer come, including the other nodes' readings."""
        if self.group.is_head:
            mine = self._dial_all(self.group.others, heartbeat=frozenset(lost))
            self.group.client.put_in_beat(urgent=True, suspects=list(lost))
            handed_in = self.group.gather("silence", CONFIRM_S + 1.5, messages.readings)
            return [*mine, *(reading for readings in handed_in.values() for reading in readings)]
        missed_at = time.monotonic()
        mine = self._dial_all(lost, heartbeat=frozenset(lost))
        # Survivors notice the loss at different moments, so they are asked a little later.
        _sleep_until(missed_at + _NOTICED_S)
        survivors = self._ask_survivors()
        _sleep_until(missed_at + _NOTICED_S + CONFIRM_S)
        return [*mine, *survivors]

    def _stand_by(self) -> None:
        while self.group.client.error is None:
            beat = self.group.client.beats.get(HEAD)
            suspects = set(beat.message.suspects) if beat else set[int]()
            new = sorted((suspects & self.contacts.keys()) - self._asked - {self.group.my_rank})
            if new:
                self._asked |= suspects
                readings = self._dial_all(new)
                self.group.hand_in("silence", [reading.model_dump(mode="json") for reading in readings])
            time.sleep(0.1)

    def _ask_survivors(self) -> list[Reading]:
        """Return whether the lost head's heartbeats reach the other followers, and whether these answer."""
        others = [rank for rank in self.group.others if rank != 0]
        answers = self._dial_each(others)
        readings = [
            self._reading(rank, answer, heartbeat=False) for rank, (answer, _) in answers.items() if answer != "answers"
        ]
        for rank, (answer, reply) in answers.items():
            silent = reply.get("head_silent_s") if isinstance(reply, dict) else None
            if answer == "answers" and isinstance(silent, int | float):
                heard = silent < _NOTICED_S / 2
                fact = SilenceFact(
                    node=0,
                    head=True,
                    heartbeat=not heard,
                    silent_s=round(silent, 1),
                    answer="answers" if heard else "not_asked",
                )
                readings.append(fact.collected("roll_call", rank))
        return readings

    def _dial_all(self, nodes: Sequence[int], *, heartbeat: frozenset[int] = frozenset()) -> list[Reading]:
        """Return the answer of each node; ``heartbeat`` are the nodes without beats, the others give context."""
        return [
            self._reading(rank, answer, heartbeat=rank in heartbeat)
            for rank, (answer, _) in self._dial_each(nodes).items()
        ]

    def _dial_each(self, nodes: Sequence[int]) -> dict[int, tuple[Answer, Json]]:
        answers: dict[int, tuple[Answer, Json]] = {}

        def dial(rank: int) -> None:
            answers[rank] = self._dial(self.contacts[rank])

        threads = [threading.Thread(target=dial, args=(rank,), daemon=True) for rank in nodes]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + CONFIRM_S + 0.5
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return {rank: answers.get(rank, ("timed_out", None)) for rank in nodes}

    def _dial(self, contact: Contact) -> tuple[Answer, Json]:
        try:
            line = sockets.dial(contact.met_at or contact.advertised, contact.port, self.secret, CONFIRM_S / 2)
        except OSError as error:
            return _ANSWERS.get(error.errno or 0, "refused"), None
        try:
            return "answers", line.ask(_ALIVE, CONFIRM_S / 2)
        except TimeoutError:
            return "silent", None
        except OSError:
            return "refused", None  # it accepted the connection and closed it
        finally:
            line.close()

    def _reading(self, node: int, answer: Answer, *, heartbeat: bool) -> Reading:
        silent_s = self.group.silent_s(node) if heartbeat else 0.0
        since = max(time.monotonic() - self.group.began_at - silent_s, 0.0)
        fact = SilenceFact(
            node=node,
            head=node == 0,
            heartbeat=heartbeat,
            silent_s=round(min(silent_s, 1e6), 1),
            since_s=round(since, 1) if heartbeat else None,
            answer=answer,
            links_down=tuple(sorted(self.links_before - links_up())),
            stopped_s=round(self.group.client.stopped_s, 1),
        )
        return fact.collected("roll_call", self.group.my_rank)


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.monotonic(), 0.0))


def goodbye(node: int, why: str) -> Reading:
    """Return a reading of a node that left before the end."""
    farewell = SilenceFact(node=node, head=node == 0, answer="not_asked", said_goodbye=why)
    return farewell.collected("roll_call", node)
