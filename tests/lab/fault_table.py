"""The fault table as Markdown, from the lines that a run of test_fault_table.py wrote.

DDP_DOCTOR_FAULT_TABLE=table.jsonl make lab ARGS="-k fault_table"
python -m tests.lab.fault_table table.jsonl
"""

import json
import os
import sys
from pathlib import Path

from tests.lab.fault_run import Outcome

VARIABLE = "DDP_DOCTOR_FAULT_TABLE"
HEAD = "| fault | torchrun | finding | culprit | seconds | exits | right |\n|---|---|---|---|---|---|---|"


def keep(outcome: Outcome) -> None:
    """Append a line to the file that the variable names, if set."""
    if path := os.environ.get(VARIABLE):
        with Path(path).open("a") as table:
            table.write(f"{outcome.as_json()}\n")


def read(path: Path) -> list[Outcome]:
    """Return all outcomes; the last one of each row."""
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return list({line["id"]: Outcome(**line) for line in lines}.values())


def markdown(outcomes: list[Outcome]) -> str:
    """The table, and a last line that counts."""
    right = [outcome for outcome in outcomes if not (outcome.problems or outcome.late)]
    innocents = sum(len(outcome.innocents) for outcome in outcomes)
    slowest = max((it.seconds for it in outcomes if it.seconds is not None), default=0.0)
    share = 100 * len(right) / len(outcomes) if outcomes else 0.0
    counted = f"{len(right)} of {len(outcomes)} right ({share:.0f} %), {innocents} innocents, slowest {slowest:g} s"
    return "\n".join([HEAD, *map(_line, outcomes), "", counted])


def _line(outcome: Outcome) -> str:
    cells = (
        outcome.fault,
        outcome.torchrun,
        _by_host(outcome.codes),
        _by_host(outcome.culprits),
        "-" if outcome.seconds is None else f"{outcome.seconds:g}",
        _by_host({name: ["hangs" if code is None else str(code)] for name, code in outcome.exits.items()}),
        "; ".join(outcome.problems + outcome.late) or "yes",
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _by_host(words: dict[str, list[str]]) -> str:
    """Return ``DD530`` if all hosts report the same, otherwise ``node0: DD516, node1: DD512``."""
    said = {name: " ".join(each) or "-" for name, each in words.items()}
    if len(set(said.values())) <= 1:
        return next(iter(said.values()), "-")
    return ", ".join(f"{name}: {each}" for name, each in said.items())


if __name__ == "__main__":
    print(markdown(read(Path(sys.argv[1]))))
