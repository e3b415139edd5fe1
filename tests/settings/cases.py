"""The cases of bad.txt and clean.txt, and their recordings."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ddp_doctor import app
from ddp_doctor.checks.node.env_vars import probe
from ddp_doctor.facts.node.nccl import ConfFile, NcclFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.settings.nccl_conf import SYSTEM_FILE, conf_lines
from tests.fakes import FakeContext
from tests.machines import lent, servers
from tests.machines.whole import Whole, judge, record
from tests.readings import collected, numbered_nodes

HERE = Path(__file__).parent

#: The machines of cases, by name; ``_usual`` returns the findings that each always has.
MACHINES: dict[str, Callable[[int], Whole]] = {
    "laptop": lambda _: lent.laptop(),
    "workstation": lambda _: lent.workstation(),
    "dgx-h100": servers.dgx_h100,
    "a100-pcie": lambda _: servers.a100_pcie(),
    "aws-p5": lent.aws,
    "pod": lambda _: lent.pod(),
    "gcp-a3": lent.gcp_a3,
    "gcp-a3-mega": lent.gcp_a3_mega,
    "azure-nd": lent.azure,
    "gh200": lambda _: servers.gh200(),
    "cpus": lambda _: servers.cpus_with_infiniband(),
}


@dataclass(frozen=True)
class Case:
    """An environment, its source, and the codes of its expected findings."""

    name: str
    settings: tuple[tuple[str, str], ...]
    codes: tuple[str, ...]
    nccl: str = ""
    conf: str = ""
    backend: str = ""
    nnodes: int = 1
    on: str = ""

    @functools.cache  # noqa: B019 - the cases live as long as the tests
    def findings(self) -> list[Finding]:
        """Return the findings, except the machine's own."""
        if self.on:
            usual = set(_usual(self.on, self.nnodes))
            found = judge(self._machines()).findings
            return [one for one in found if (one.code, one.title) not in usual]
        return list(app.judge(self._recording()).report.findings)

    def recording(self) -> Recording:
        """Return the recording of the case, including the machine's own facts."""
        return record(self._machines()) if self.on else self._recording()

    def _machines(self) -> list[Whole]:
        return [self._machine(node) for node in range(self.nnodes)]

    def _machine(self, node: int) -> Whole:
        machine = MACHINES[self.on](node)
        machine.env = {**machine.env, **dict(self.settings)}
        return machine

    def _recording(self) -> Recording:
        files = {path: "" for name, path in self.settings if name.endswith("_FILE")}
        facts: list[tuple[str, Fact]] = [("env_vars", probe(FakeContext(env=dict(self.settings), files=files)))]
        if self.nccl:
            facts.append(("software", Software(python="3.11.7", machine="x86_64", nccl_loaded=self.nccl)))
        if self.conf:
            lines = conf_lines(self.conf)
            facts.append(("nccl", NcclFact(conf=(ConfFile(path=SYSTEM_FILE, reason="system", lines=lines),))))
        nodes = numbered_nodes(self.nnodes)
        world = World(
            nnodes=self.nnodes, nproc_per_node=2, world_size=2 * self.nnodes, backend=self.backend, nodes=nodes
        )
        return Recording(
            world=world if self.backend else None,
            readings=tuple(collected(check, fact, node.node_rank) for node in nodes for check, fact in facts),
        )


@functools.cache
def _usual(machine: str, nnodes: int) -> tuple[tuple[str, str], ...]:
    nodes = [MACHINES[machine](node) for node in range(nnodes)]
    return tuple((one.code, one.title) for one in judge(nodes).findings)


def _lines(name: str) -> Iterator[list[str]]:
    for line in (HERE / name).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield [part.strip() for part in line.split("|")]


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, _, value in (word.partition("=") for word in shlex.split(text)))


def _case(name: str, settings: str, codes: str = "", circumstances: str = "") -> Case:
    given = dict(_pairs(circumstances))
    return Case(
        name=name,
        settings=_pairs(settings),
        codes=tuple(sorted(codes.split())),
        nccl=given.pop("nccl", ""),
        conf=given.pop("conf", ""),
        backend=given.pop("backend", ""),
        nnodes=int(given.pop("nnodes", "1")),
        on=given.pop("on", ""),
    )


def bad() -> list[Case]:
    return [_case(" ".join(line[::2]), *line) for line in _lines("bad.txt")]


def clean() -> list[Case]:
    return [_case(*line) for line in _lines("clean.txt")]
