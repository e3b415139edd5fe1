"""``ddp-doctor run`` that also tests the groups of nodes in $DDP_DOCTOR_GROUPS, round by round.

Started in place of ``python -m ddp_doctor`` on the head; the results go to $DDP_DOCTOR_GROUP_TESTS.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from ddp_doctor.__main__ import main
from ddp_doctor.engine.isolation.group_tests import group_test
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.groups import run_groups
from ddp_doctor.model.check import Check
from ddp_doctor.model.finding import Reproducer

once = Agent.run_checks
SMALL = Reproducer(kind="all_reduces", size_bytes=1 << 20)


def with_groups(agent: Agent, checks: Sequence[Check]) -> None:
    tests = []
    for number, groups in enumerate(json.loads(os.environ["DDP_DOCTOR_GROUPS"])):
        results = run_groups(agent, [tuple(nodes) for nodes in groups], SMALL, 10.0)
        tests += [group_test(number, nodes, result, 0.0) for nodes, result in zip(groups, results, strict=True)]
    Path(os.environ["DDP_DOCTOR_GROUP_TESTS"]).write_text(json.dumps([test.model_dump() for test in tests]))
    once(agent, checks)


if __name__ == "__main__":
    with patch.object(Agent, "run_checks", with_groups):
        main()
