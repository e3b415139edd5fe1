"""Runs of the doctor on hosts with two NICs each, and what is asked of their reports."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.lab.hosts import WITHOUT_DDP, Host, Lab
from tests.waiting import JOIN_LATE

#: The head by its address in the second network: how nodes whose first is dead meet at all.
SECOND = "10.78.0.1:29400"
FIRST = "10.77.0.1:29400"
_MOST_S = 200.0


@dataclass(frozen=True)
class Run:
    """The result of a run, as node0 reported it; the other nodes must report the same."""

    report: dict[str, Any]
    recording: dict[str, Any]
    texts: Mapping[str, str]
    exits: set[int]
    problems: list[str] = field(default_factory=list)

    def findings(self) -> dict[str, dict[str, Any]]:
        """Return the findings above info, by code."""
        return {one["code"]: one for one in self.report["findings"] if one["severity"] != "info"}

    def settings(self) -> list[dict[str, Any]]:
        """Return all settings that any finding recommends to set or unset."""
        return [
            setting for one in self.report["findings"] for remedy in one["remedies"] for setting in remedy["settings"]
        ]


def run(lab: Lab, endpoint: str = FIRST, *arguments: str, env_files: bool = False, level: str = "quick") -> Run:
    """Run it on all hosts, without arguments all but the checks of DDP; ``env_files``: each sources its last first."""
    started = lab.start_everywhere(lambda host: _command(lab, host, endpoint, level, arguments, env_files))
    exits = {process.wait(_MOST_S) for process in started.values()}
    head = lab.hosts[0]
    return Run(
        report=json.loads((head.folder / "out.json").read_text()),
        recording=json.loads((head.folder / "record.json").read_text()),
        texts={name: process.output() + process.errors() for name, process in started.items()},
        exits=exits,
        problems=lab.left_behind(),
    )


def give_all_the_file_of_the_head(lab: Lab) -> None:
    """Put the settings that node0 wrote in the place of what the others wrote."""
    head, *others = lab.hosts
    for host in others:
        shutil.copy(head.folder / "settings.sh", host.folder / "settings.sh")


def _command(
    lab: Lab, host: Host, endpoint: str, level: str, arguments: Sequence[str], env_files: bool
) -> Sequence[str]:
    doctor = (
        *("python", "-m", "ddp_doctor", "run", "--nnodes", str(len(lab.hosts)), "--rdzv-endpoint", endpoint),
        *("--node-rank", str(host.index), "--nproc-per-node", "1", "--level", level),
        *("--json", str(host.folder / "out.json"), "--record", str(host.folder / "record.json")),
        *(*JOIN_LATE, "--settings", f"env:{host.folder / 'settings.sh'}", *(arguments or WITHOUT_DDP)),
    )
    source = f". {host.folder}/settings.sh && " if env_files else ""
    return ("sh", "-c", f'{source}exec "$@"', "doctor", *doctor)
