"""Runs of ``ddp-doctor run --isolate`` on hosts with one rank each, usually eight, and planted faults.

python -m tests.lab.isolation_run                   all rows, a line each: who is named, rounds, seconds
python -m tests.lab.isolation_run leaf killed       some of them
python -m tests.lab.isolation_run healthy 20        one of them so often
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab import faults
from tests.lab.hosts import Host, Lab
from tests.waiting import JOIN_LATE

HOSTS = 8
LEAVES = "".join(f"leaf{number}: node{2 * number},node{2 * number + 1}\n" for number in range(HOSTS // 2))
_BUDGET_S = 200
#: However busy the machine is, the doctor has ended by then.
_MOST_S = 400.0


@dataclass(frozen=True)
class Row:
    """An injected fault, and the nodes, pairs and leaves to blame for it."""

    id: str
    plant: tuple[str, ...] = ()  # before the start
    strike: str = ""  # as soon as the first rank of node5 runs
    blames: frozenset[str] = frozenset()  # "node5", "node2~node5", "leaf3"
    options: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()  # hosts that cannot report


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


FIVE = _of("node5")
ROWS = (
    Row("healthy"),
    Row("slow-nic", ("rate:node5:100",), blames=FIVE),
    Row("lossy", ("loss:node5:10",), blames=FIVE),
    Row("hanging", ("misdeed:node5:hang",), blames=FIVE),
    Row("refusing", ("reject-all-but:node5", "misdeed:node5:die"), blames=FIVE),
    Row("wrong-sum", ("misdeed:node5:wrong",), blames=FIVE),
    Row("starved", strike="starved:node5:3", blames=FIVE),
    Row("two-at-once", ("misdeed:node5:die", "misdeed:node2:wrong"), blames=_of("node2", "node5")),
    Row("bad-pair", ("cut-path:node2:node5",), blames=_of("node2~node5")),
    Row("leaf", ("apart:6",), blames=_of("leaf3"), options=("--topology", "leaves")),
    Row("now-and-then", ("misdeed:node5:wrong:5",), blames=FIVE, options=("--repeat", "10")),
    Row("killed", strike="kill-all:node5", blames=FIVE, lost=("node5",)),
)


@dataclass(frozen=True)
class Outcome:
    """The result of the run, as node0 and all other nodes reported it."""

    named: frozenset[str]  # by findings above information
    codes: frozenset[str]
    exits: frozenset[int]
    verdicts: frozenset[str]
    tests: tuple[dict[str, Any], ...]
    stopped: str
    seconds: float
    said: str  # what node0 printed
    left: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return 1 + max((test["round"] for test in self.tests), default=-1)


def run_row(row: Row, hosts: int = HOSTS) -> Outcome:
    """Run the row on its own hosts."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts))
        (lab.folder / "leaves").write_text(LEAVES)
        for fault in row.plant:
            stack.enter_context(faults.plant(lab, fault))
        began = time.monotonic()
        started = lab.start_everywhere(lambda host: _command(lab, host, row.options))
        if row.strike:
            lab["node5"].wait_for_process("ddp-doctor:r5")
            stack.enter_context(faults.plant(lab, row.strike))
        speaking = [host for host in lab.hosts if host.name not in row.lost]
        exits = frozenset(started[host.name].wait(_MOST_S) for host in speaking)
        took_s = time.monotonic() - began
        reports = [json.loads((host.folder / "out.json").read_text()) for host in speaking]
        recording = json.loads((lab.hosts[0].folder / "record.json").read_text())
        left = lab.left_behind(counts=lambda line: line.partition(":")[0] not in row.lost)
        said = started["node0"].output() + started["node0"].errors()
    (fact,) = (one["fact"] for one in recording["readings"] if one["check"] == "isolation")
    findings = [one for report in reports for one in report["findings"] if one["severity"] != "info"]
    return Outcome(
        named=frozenset(_name(culprit) for finding in findings for culprit in finding["culprits"]),
        codes=frozenset(finding["code"] for finding in findings),
        exits=exits,
        verdicts=frozenset(report["verdict"] for report in reports),
        tests=tuple(fact["tests"]),
        stopped=fact["stopped"],
        seconds=took_s,
        said=said,
        left=left,
    )


def _command(lab: Lab, host: Host, options: Sequence[str]) -> tuple[str, ...]:
    given = (str(lab.folder / "leaves") if word == "leaves" else word for word in options)
    return (
        *("python", "-m", "ddp_doctor", "run", "--nnodes", str(len(lab.hosts)), "--rdzv-endpoint", "node0:29400"),
        *("--node-rank", str(host.index), "--nproc-per-node", "1", "--isolate", "--only", "isolation", "--quiet"),
        *(*JOIN_LATE, "--budget", str(_BUDGET_S)),  # on two cores, whatever else they do
        *("--json", str(host.folder / "out.json"), "--record", str(host.folder / "record.json"), *given),
    )


def _name(culprit: dict[str, Any]) -> str:
    if culprit["kind"] == "pair":
        return "~".join(sorted((culprit["node"], culprit["peer_node"])))
    return str(culprit["name"] or culprit["node"])


def _main(words: Sequence[str]) -> None:
    times = next((int(word) for word in words if word.isdigit()), 1)
    names = [word for word in words if not word.isdigit()]
    for row in (row for row in ROWS if not names or row.id in names):
        for _ in range(times):
            done = run_row(row)
            is_right = done.named == row.blames and not done.stopped and not done.left
            told = f"{', '.join(sorted(done.named)) or 'nobody'} ({', '.join(sorted(done.codes)) or '-'})"
            print(f"{row.id:13} {told:28} {done.rounds:3} rounds  {done.seconds:5.1f} s  {done.stopped}", end="")
            print("" if is_right else f"  WRONG {sorted(done.verdicts)} {done.left}\n{done.said}", flush=True)
            if not is_right:
                Path(f"/tmp/isolation-{row.id}.json").write_text(json.dumps(done.tests))


if __name__ == "__main__":
    _main(sys.argv[1:])
