"""Every fix by settings for GPUs and RDMA, on recorded facts: the test that a trial repeats, and its conclusion.

The experiments are simulated with the rule's own settings, because no GPU is available to hang.
"""

from typing import Literal

import pytest

from ddp_doctor import app
from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.model.finding import Finding, Remedy
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.model.trial import Arm, Attempt, Experiment, RankEvidence, TrialRecord
from ddp_doctor.settings.trials import why_not
from tests.readings import collected
from tests.recordings import SITUATIONS, load

Outcome = Literal["passed", "hung", "failed"]

#: Situations, each with the code of a finding that recommends settings.
OFFERED = [
    ("topology/classic-two-socket-with-recorded-facts", "DD401"),
    ("topology/classic-two-socket-first-all-reduce", "DD401"),
    ("pcie/bends-the-path-of-a-stall", "DD401"),
    ("topology/transports-p2p-disabled-behind-nvswitch", "DD434"),
    ("topology/transports-infiniband-disabled", "DD436"),
    ("topology/transports-nic-behind-the-host-bridge", "DD441"),
    ("topology/nvls-cannot-bind-multicast", "DD444"),
    ("topology/mnnvl-without-imex", "DD445"),
    ("topology/cumem-host-refused", "DD446"),
    ("topology/peer-memory-refused", "DD446"),
    ("interfaces/nccl-families-differ-and-ipv6-is-everywhere", "DD524"),
    ("nccl/shared-memory-full", "DD237"),
    ("rdma/gid-index-wrong-on-one-node", "DD568"),
    ("rdma/old-nccl-without-gid-index", "DD569"),
    ("rdma/hca-setting-matches-nothing", "DD571"),
    ("rdma/on-one-node-only", "DD572"),
    ("rdma/hca-leaves-out-the-nearest", "DD577"),
    ("rdma/hca-prefix-takes-storage", "DD578"),
    ("rdma/send-times-out-and-packets-are-lost", "DD584"),
    ("rdma/send-times-out", "DD584"),
    ("allreduce/wrong-share-of-rank-2", "DD601"),
    ("p2p/corrupts-from-1-to-3", "DD606"),
    ("hang/all-ranks-in-one-collective", "DD616"),
    ("topology/transports-one-socket-on-100-gbit", "DD447"),
]
each = pytest.mark.parametrize(("name", "code"), OFFERED, ids=str)


def found(recording: Recording, code: str) -> Finding:
    return next(one for one in app.judge(recording).report.findings if one.code == code)


def made_of_settings(finding: Finding) -> list[Remedy]:
    return [one for one in finding.remedies if one.settings]


def tried(finding: Finding, remedy: Remedy, without: Outcome, treated: Outcome) -> Experiment:
    assert finding.reproduced_by is not None
    moved = finding.reproduced_by.kind != "meet"
    turns: list[tuple[Arm, Outcome]] = [("treatment", treated), ("control", without)] * 3
    return Experiment(
        code=finding.code,
        settings=remedy.settings,
        reproducer=finding.reproduced_by,
        attempts=tuple(
            Attempt(
                arm=arm,
                outcome=outcome,
                bytes_per_s=11.2e9 if moved and outcome == "passed" else None,
                duration_s=8.0 if outcome == "hung" else 0.9,
                reason="DistBackendError: …" if outcome == "failed" else "",
            )
            for arm, outcome in turns
        ),
    )


def judged_with(name: str, code: str, position: int, without: Outcome, treated: Outcome) -> tuple[Finding, Remedy]:
    """Return the finding after a trial of its remedy at this position; and that remedy before the trial."""
    recording = load(name)
    before = found(recording, code)
    remedy = made_of_settings(before)[position]
    experiments = (tried(before, remedy, without, treated),)
    return found(recording.model_copy(update={"experiments": experiments}), code), remedy


@each
def test_offered_setting_can_be_tried_and_has_an_undo(name: str, code: str):
    for remedy in made_of_settings(found(load(name), code)):
        assert why_not([one.name for one in remedy.settings], "nccl") is None
        assert remedy.scope == "job"
        assert remedy.undo
        assert all(one.why for one in remedy.settings)
        assert not {one.name for one in remedy.settings} & set(remedy.conflicts)


@each
def test_setting_that_ends_the_fault_is_proved_and_comes_first(name: str, code: str):
    before = found(load(name), code)
    without: Outcome = "hung" if before.reproduced_by and before.reproduced_by.kind == "exchange" else "failed"
    for position in range(len(made_of_settings(before))):
        finding, remedy = judged_with(name, code, position, without, "passed")

        assert finding.remedies[0].settings == remedy.settings
        assert finding.remedies[0].proof.status == "proved"
        assert finding.confidence.value == "proved"


@each
def test_setting_that_still_hangs_is_disproved_and_comes_last(name: str, code: str):
    finding, remedy = judged_with(name, code, 0, "hung", "hung")

    assert finding.remedies[-1].settings == remedy.settings
    assert finding.remedies[-1].proof.status == "disproved"


def test_hanging_all_reduce_on_nvswitches_is_first_tried_without_nvls():
    recording = load("hang/all-ranks-in-one-collective")
    (trial,) = recording.trials
    log = "node0:1:2 [0] NCCL INFO NVLS multicast support is available on dev 0\n"
    evidence = tuple(one.model_copy(update={"output_tail": one.output_tail + log}) for one in trial.evidence)
    trials = (trial.model_copy(update={"evidence": evidence}),)

    finding = found(recording.model_copy(update={"trials": trials}), "DD616")

    names = [one.name for remedy in finding.remedies for one in remedy.settings]
    assert names == ["NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE"]


def test_all_reduce_slowed_down_by_settings_is_tried_without_them():
    recording = load("topology/transports-nvlink-at-a-tenth")
    readings = tuple(
        one.model_copy(update={"fact": {**(one.fact or {}), "variables": {"NCCL_MAX_NCHANNELS": "1"}}})
        if one.check == "env_vars"
        else one
        for one in recording.readings
    )

    finding = found(recording.model_copy(update={"readings": readings}), "DD440")

    assert [(one.name, one.action) for one in finding.remedies[0].settings] == [("NCCL_MAX_NCHANNELS", "unset")]
    assert finding.remedies[0].undo == "export NCCL_MAX_NCHANNELS=1"
    assert finding.reproduced_by is not None
    assert finding.reproduced_by.kind == "all_reduce"
    assert not made_of_settings(found(recording, "DD440"))


def test_only_a_slow_pair_with_the_longest_path_loses_p2p():
    pairs = {(0, 1): 20.0, (0, 2): 21.0, (1, 2): 3.0}
    links = {(0, 1): "PIX", (0, 2): "PIX", (1, 2): "PXB"}

    finding = found(slow_pair(pairs, links), "DD607")

    (remedy,) = made_of_settings(finding)
    assert [(one.name, one.value) for one in remedy.settings] == [("NCCL_P2P_LEVEL", "PIX")]
    assert finding.reproduced_by is not None
    assert (finding.reproduced_by.ranks, finding.reproduced_by.healthy_bytes_per_s) == ((1, 2), 21.0e9)


def test_slow_pair_on_the_same_path_as_others_gets_no_setting():
    pairs = {(0, 1): 20.0, (0, 2): 21.0, (1, 2): 3.0}

    finding = found(slow_pair(pairs, dict.fromkeys(pairs, "PIX")), "DD607")

    assert not made_of_settings(finding)


def slow_pair(rates: dict[tuple[int, int], float], codes: dict[tuple[int, int], str]) -> Recording:
    gpus = [f"GPU{at}" for at in range(3)]
    links = {one: dict.fromkeys(gpus, "X") for one in gpus}
    for (one, two), code in codes.items():
        links[f"GPU{one}"][f"GPU{two}"] = links[f"GPU{two}"][f"GPU{one}"] = code
    matrix = TopologyFact(
        gpus=tuple(gpus),
        nics={},
        links=links,
        cpu_affinity={},
        numa_affinity={},
        gpu_numa_id={},
        cpu_vendor="GenuineIntel",
    )
    exchanges = [
        P2pFact(
            pairs=tuple(
                PairResult(peer=sum(pair) - rank, wrong_bytes=0, latency_us=20, bandwidth_gb_per_s=rate, size_bytes=1)
                for pair, rate in rates.items()
                if rank in pair
            )
        )
        for rank in range(3)
    ]
    log = "".join(f"Channel 00/0 : {one}[{one}] -> {two}[{two}] via P2P/CUMEM\n" for one, two in rates)
    trial = TrialRecord(
        trial="t0",
        backend="nccl",
        ranks=(0, 1, 2),
        checks=("p2p",),
        evidence=tuple(RankEvidence(rank=rank, began=True, done=True, output_tail=log) for rank in range(3)),
    )
    readings = [collected("topology", matrix)]
    readings += [collected("p2p", fact, rank=rank) for rank, fact in enumerate(exchanges)]
    world = World(nproc_per_node=3, world_size=3, backend="nccl", nodes=(Node(hostname="node0", nproc=3),))
    return Recording(world=world, readings=tuple(readings), trials=(trial,))


def test_recorded_experiments_match_the_remedies_of_the_rules():
    for situation in SITUATIONS:
        for code in {experiment.code for experiment in load(situation).experiments}:
            finding = found(load(situation), code)
            statuses = {one.proof.status for one in made_of_settings(finding)}
            assert statuses != {"not_tried"}, situation
