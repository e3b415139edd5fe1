"""``ddp-doctor run`` that repeats the ranks' part, to measure the cost of one more trial over the nodes.

Started in place of ``python -m ddp_doctor`` on the head; writes the seconds of each trial to $DDP_DOCTOR_BENCH.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from ddp_doctor.__main__ import main
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.model.check import Check

TRIALS = 12
once = Agent.run_checks


def again(agent: Agent, checks: Sequence[Check]) -> None:
    seconds = []
    for number in range(TRIALS):
        agent.partial.trials.clear()
        agent.partial.readings.clear()
        agent.attempts = number
        started = time.perf_counter()
        once(agent, checks)
        seconds.append(time.perf_counter() - started)
        assert [one.outcome for one in agent.partial.trials] == ["finished"]
    Path(os.environ["DDP_DOCTOR_BENCH"]).write_text(json.dumps(seconds))


if __name__ == "__main__":
    with patch.object(Agent, "run_checks", again):
        main()
