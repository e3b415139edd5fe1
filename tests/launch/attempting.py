"""``ddp-doctor run`` that also tries remedies over its nodes and a check that runs separately.

Started in place of ``python -m ddp_doctor`` on the head; writes the attempts to $DDP_DOCTOR_ATTEMPTS.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from ddp_doctor.__main__ import main
from ddp_doctor.checks.collectives import nccl_diagnostics
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.prove.experiments import attempt_of
from ddp_doctor.model.check import Check
from ddp_doctor.model.finding import Reproducer, Setting

NAME = "GLOO_SOCKET_IFNAME"
TRIALS = (
    (Reproducer(kind="exchange", ranks=(0, 2), size_bytes=1 << 20), (), 10.0),
    (Reproducer(kind="all_reduce", size_bytes=1 << 20), (Setting(name=NAME, value="lo"),), 10.0),
    (Reproducer(kind="meet"), (Setting(name=NAME, value="eth9", node_rank=1),), 10.0),
    (Reproducer(kind="meet"), (), 0.001),
    (Reproducer(kind="meet"), (), 10.0),
)
once = Agent.run_checks


def then_attempts(agent: Agent, checks: Sequence[Check]) -> None:
    once(agent, checks)
    made = [
        attempt_of("treatment", agent.attempt(reproducer, settings, limit)) for reproducer, settings, limit in TRIALS
    ]
    alone = agent.run_alone(nccl_diagnostics.CHECK)
    ranks = [reading.rank for reading in alone.readings if reading.check == nccl_diagnostics.CHECK.id]
    came = [*(one.model_dump() for one in made), {"outcome": alone.record.outcome, "ranks": ranks}]
    Path(os.environ["DDP_DOCTOR_ATTEMPTS"]).write_text(json.dumps(came))


if __name__ == "__main__":
    with patch.object(Agent, "run_checks", then_attempts):
        main()
