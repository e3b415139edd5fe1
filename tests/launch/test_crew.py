"""One node's part of a trial, ordered by another node."""

import os

import pytest

from ddp_doctor.engine.node_run.session import Session
from ddp_doctor.model.choices import Level
from ddp_doctor.model.recording import World
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks import run_folder
from ddp_doctor.ranks.node_ranks import NodeRanks


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/elsewhere", "", "t", "t1/2", "t\u0661"])
def test_a_trial_whose_name_would_be_a_path_elsewhere_is_refused(name):
    with Session(dict(os.environ), ("127.0.0.1", 0), lambda _text: None) as session:
        crew: NodeRanks = session.crew(World(), 0, Level.QUICK, None)
        with pytest.raises(ValueError, match="no name of a trial"):
            crew.run(TrialRecord(trial=name), ())
        assert [path.name for path in session.scratch.iterdir()] == [run_folder.NOTE]
