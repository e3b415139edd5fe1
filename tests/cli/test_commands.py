"""What a command makes of the words of agents elsewhere."""

import pytest

from ddp_doctor.checks import CHECKS
from ddp_doctor.cli import commands, run
from ddp_doctor.model.recording import Options
from ddp_doctor.starters.fanout import Ended
from ddp_doctor.starters.start_all_nodes import StartedNodes
from ddp_doctor.starters.starter_channel import AgentState


@pytest.mark.parametrize("recording", ["no JSON", "[]", '{"readings": [{}]}'])
def test_a_recording_that_cannot_be_read_is_one_sentence(recording, capsys):
    ended = Ended({0: AgentState(has_answered=True, recording=recording)})
    here = StartedNodes((), ("node0", "node1"), ("node0", 29400), "ssh")

    assert run._outcome_of_agents(ended, here, Options()) is None
    assert "cannot be read here" in capsys.readouterr().err


def test_an_explanation_has_no_markup_of_the_pages():
    assert "`ddp-doctor run` tries it." in commands.explain("DD412")
    assert not any("``" in commands.explain(one.code) for check in CHECKS for one in check.rules)
