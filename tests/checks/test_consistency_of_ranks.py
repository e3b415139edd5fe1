"""Settings of a node's ranks: the recorded values, and a job of thousands of ranks."""

from ddp_doctor.checks.cluster.consistency import CHECK
from ddp_doctor.facts.cluster import ConsistencyFact, RankSettings, Settings
from ddp_doctor.model.recording import Recording
from ddp_doctor.probing.rank_identity import settings_of
from tests.readings import collected, findings_of, uneven_world


def test_thousands_of_different_ranks_are_one_short_finding():
    readings = []
    for node in range(500):
        ranks = {local: settings_of({"NCCL_BUFFSIZE": str(8 * node + local)}) for local in range(8)}
        readings.append(collected("env_vars", RankSettings(local_size=8, ranks=ranks), node))
        readings.append(collected("consistency", ConsistencyFact(tool_version="0.1.0"), node))
    world = uneven_world([8] * 500, "nccl").model_copy(update={"launcher": "torchrun"})

    (found,) = (one for one in findings_of(CHECK, Recording(world=world, readings=tuple(readings))))

    assert found.code == "DD555"
    assert len(found.title) < 400
    assert len(found.evidence[0].text) < 400


def test_secrets_and_unrelated_names_are_not_recorded():
    env = {
        "NCCL_NOTE": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "HOME": "/root",
        "HF_TOKEN": "hf_x",
        "NCCL_DEBUG": "INFO",
        "NCCL_BUFFSIZE": "1\udcff",
        "NCCL_\udcff": "1",
        "NCCL_ALGO": "Tree",
    }

    assert settings_of(env) == Settings(
        variables={"NCCL_ALGO": "Tree", "NCCL_BUFFSIZE": "1\\udcff"}, withheld=("NCCL_NOTE",)
    )
