"""One node's part of a trial that another node orders."""

import os

import pytest

from ddp_doctor.engine.node_run.node import Session
from ddp_doctor.model.recording import Options, World
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks import folders
from ddp_doctor.ranks.node_ranks import NodeRanks, Run
from ddp_doctor.starters.request import RunRequest

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/elsewhere", "", "t", "t1/2", "t\u0661"])
def test_a_trial_whose_name_would_be_a_path_elsewhere_is_refused(name):
    with Session(RunRequest(Options(), dict(os.environ))) as session:
        node_ranks = NodeRanks(Run(Options(), {}, print, World()), session.run_folder, session.server, None)
        with pytest.raises(ValueError, match="invalid test name"):
            node_ranks.run_trial(TrialRecord(trial=name), ())
        assert [path.name for path in session.run_folder.iterdir()] == [folders.NOTE]
