"""Predictions of ddp-doctor for simulated machines compared with NCCL, and NCCL's decisions as facts.

``make planted-all`` updates both: the first is part of its page, the second is decided.json in this directory, by
machine and release. The simulated rates and channels are NCCL's own plans; no data moved.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.nccl_wheels import RELEASES, libnccl
from tests.planted import at_random, tuning
from tests.planted.graph import SPEAKS, decided
from tests.planted.machines import MACHINES, Kind, compared, predicted
from tests.planted.world import Machines

DECIDED = Path(__file__).with_name("decided.json")
MADE_AT_RANDOM = 30
#: The message size for which the algorithm is queried.
_BYTES = 64 << 20


def kinds() -> Iterator[Kind]:
    """Yield the named machines, then the random ones."""
    yield from MACHINES
    for number in range(MADE_AT_RANDOM):
        machines, ranks = at_random.hosts(number)
        yield Kind(f"at random, {number}", lambda machines=machines: machines, ranks)  # type: ignore[misc]  # bound


def lines() -> Iterator[str]:
    yield "## Machines\n"
    yield "How much of what the doctor predicts NCCL does: transport and rate of each pair of GPUs; of two hosts which"
    yield "NIC each GPU takes, by which path, how fast, and whether with GPUDirect RDMA; of those at random which"
    yield "algorithm and protocol an all-reduce of ten sizes takes, from NCCL's own tuning table (2.27.5 and 2.32.3).\n"
    yield f"| machine | ranks | {' | '.join(RELEASES)} |\n|---|---|{'---|' * len(RELEASES)}"
    facts: dict[str, dict[str, Any]] = {}
    differences: list[str] = []
    total: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for kind in kinds():
        machines, cells = kind.build(), []
        with Machines(machines) as planted:
            for release in RELEASES:
                ran = planted.run(libnccl(release), kind.ranks, env=SPEAKS, size=_BYTES)
                asked, differ = compared(machines, predicted(machines, release), ran)
                cells.append(
                    f"{asked.total() - len(differ)} of {asked.total()}" if not any(ran.codes) else "**failed**"
                )
                differences += [f"| {kind.name} | {release} | {question} | {words} |" for question, words in differ]
                total += asked
                wrong += Counter(question for question, _ in differ)
                if not kind.name.startswith("at random"):
                    facts.setdefault(kind.name, {})[release] = _facts(ran.said[0])
                elif release in tuning.RELEASES[1:]:  # the first release does not report its choice
                    for choice in tuning.choices(planted, release, kind.ranks // len(machines)):
                        total["algorithm"] += 1
                        if choice.ours != choice.nccls:
                            wrong["algorithm"] += 1
                            differences.append(f"| {kind.name} | {release} | algorithm | {choice} |")
        yield f"| {kind.name} | {kind.ranks} | {' | '.join(cells)} |"
    yield "\n| question | equal | of |\n|---|---|---|"
    yield from (f"| {question} | {count - wrong[question]} | {count} |" for question, count in sorted(total.items()))
    if differences:
        yield "\n| machine | release | differs | words |\n|---|---|---|---|"
        yield from differences
    DECIDED.write_text(json.dumps(facts, indent=1) + "\n")


def _facts(said: str) -> dict[str, Any]:
    """Return rank 0's channels, GB/s of the search, all-reduce row of the tuning table, algorithm for 64 MiB."""
    found = decided(said)
    return {
        "max_bw": found.most_gb_per_s,
        "channels": found.channels,
        "patterns": [" ".join(pattern) for pattern in found.patterns],
        "allreduce": " ".join(found.allreduce),
        "chosen": [" ".join(chosen) for chosen in found.chosen],
    }
