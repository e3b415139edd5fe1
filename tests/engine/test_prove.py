"""The trials of a remedy, and the conclusions from them."""

import time
from collections.abc import Callable, Sequence
from itertools import chain, cycle

import pytest

from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.engine.prove.experiments import Spoiled, Trials, attempt_of, candidates
from ddp_doctor.engine.prove.proofs import proof_of, with_proofs
from ddp_doctor.model.choices import Confidence, Level, Severity
from ddp_doctor.model.finding import Finding, Proof, Remedy, Reproducer, Setting
from ddp_doctor.model.recording import Options, Recording, World
from ddp_doctor.model.trial import Arm, Attempt, Experiment, Raised, RankEvidence, TrialRecord
from ddp_doctor.ranks.trial import PAUSED, TrialResult
from tests.recordings import load

MEET = Reproducer(kind="meet")
SPEED = Reproducer(kind="all_reduce", size_bytes=1 << 20)
ETH1 = (Setting(name="GLOO_SOCKET_IFNAME", value="eth1"),)
ETH2 = (Setting(name="GLOO_SOCKET_IFNAME", value="eth2"),)
GB = 1e9

World_ = Callable[[Arm, Sequence[Setting]], Attempt]


def passes(arm: Arm, rate: float | None = None, unread: tuple[str, ...] = ()) -> Attempt:
    return Attempt(arm=arm, outcome="passed", bytes_per_s=rate, duration_s=0.1, unread=unread)


def hangs(arm: Arm) -> Attempt:
    return Attempt(arm=arm, outcome="hung", duration_s=1.0)


def fails(arm: Arm) -> Attempt:
    return Attempt(arm=arm, outcome="failed", reason="RuntimeError: no such interface", duration_s=0.1)


class Plays:
    """A world where ``scene`` gives the outcome of each trial; keeps the arms and their limits."""

    def __init__(self, scene: World_) -> None:
        self.scene = scene
        self.arms: list[Arm] = []
        self.limits: list[float] = []

    def __call__(self, arm: Arm, _reproducer: Reproducer, settings: Sequence[Setting], limit_s: float) -> Attempt:
        self.arms.append(arm)
        self.limits.append(limit_s)
        return self.scene(arm, settings)


def tried(
    scene: World_, *remedies: Sequence[Setting], reproducer: Reproducer = MEET, budget_s: float = 60.0
) -> tuple[Plays, list[Experiment]]:
    plays = Plays(scene)
    kept: list[Experiment] = []
    trials = Trials(plays, time.monotonic() + budget_s, kept, "gloo", lambda _text: None)
    trials.compare(
        [Experiment(code="DD521", settings=tuple(settings), reproducer=reproducer) for settings in remedies or (ETH1,)]
    )
    return plays, kept


def finding(*remedies: Remedy, reproducer: Reproducer | None = MEET, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(
        code="DD521",
        name="no-usable-interface",
        severity=severity,
        title="A fault",
        confidence=Confidence.LIKELY,
        remedies=remedies,
        reproduced_by=reproducer,
    )


def remedy(settings: Sequence[Setting], name: str = "a") -> Remedy:
    return Remedy(summary=name, settings=tuple(settings))


# --- trials ---------------------------------------------------------------------------------------


def test_a_hang_that_ends_with_the_setting_is_proved_by_three_trials():
    plays, (one,) = tried(lambda arm, _: passes(arm) if arm == "treatment" else hangs(arm))

    assert plays.arms == ["treatment", "control", "treatment"]
    assert proof_of(one) == Proof(status="proved", before="no end in 1.0 s", after="passes (2 of 2)")


def test_limit_of_a_control_is_a_multiple_of_the_treatments_time():
    plays, _ = tried(lambda arm, _: passes(arm) if arm == "treatment" else hangs(arm))
    treatment_s, control_s, _ = plays.limits

    assert treatment_s == pytest.approx(6.0)
    assert control_s == pytest.approx(1.0)


def test_slow_and_fast_interface_are_measured_five_times_each_alternately():
    plays, (one,) = tried(lambda arm, _: passes(arm, GB if arm == "treatment" else 0.1 * GB), reproducer=SPEED)
    proof = proof_of(one)

    assert plays.arms == ["treatment", "control"] * 5
    assert proof.status == "proved"
    assert proof.before == "100 MB/s (median of 5, 100 to 100)"
    assert proof.after == "1.00 GB/s (median of 5, 1.00 to 1.00)"


def test_a_second_interface_that_is_slower_is_disproved():
    _, (one,) = tried(lambda arm, _: passes(arm, 0.1 * GB if arm == "treatment" else 0.3 * GB), reproducer=SPEED)

    assert proof_of(one).status == "disproved"
    assert proof_of(one).reason == "it is slower"


def test_equally_fast_interface_is_disproved():
    _, (one,) = tried(lambda arm, _: passes(arm, 0.3 * GB), reproducer=SPEED)

    assert (proof_of(one).status, proof_of(one).reason) == ("disproved", "it makes no difference")


def test_a_setting_that_fails_is_disproved_by_one_trial():
    plays, (one,) = tried(lambda arm, _: fails(arm))

    assert plays.arms == ["treatment"]
    assert proof_of(one).status == "disproved"
    assert proof_of(one).after == "fails: RuntimeError: no such interface"


def test_fault_that_does_not_reappear_does_not_prove_the_setting():
    plays, (one,) = tried(lambda arm, _: passes(arm))

    assert plays.arms == ["treatment", "control"] * 3
    assert proof_of(one).status == "not_tried"
    assert "the fault did not appear again" in (proof_of(one).reason or "")


def test_intermittent_fault_is_not_proved():
    turns = iter([passes("control"), hangs("control"), passes("control")])
    _, (one,) = tried(lambda arm, _: passes(arm) if arm == "treatment" else next(turns))

    assert proof_of(one).status == "not_tried"
    assert "some trials without the fix also passed" in (proof_of(one).reason or "")


def test_remedy_is_proved_if_every_trial_without_it_hung_or_was_slower():
    turns = iter([passes("control", 0.1 * GB), hangs("control"), *[passes("control", 0.2 * GB)] * 3])
    _, (one,) = tried(lambda arm, _: passes(arm, GB) if arm == "treatment" else next(turns), reproducer=SPEED)

    assert proof_of(one).status == "proved"
    assert proof_of(one).before == "passes (4 of 5), no end in 1.0 s (1 of 5)"


def test_fix_is_not_proved_if_one_trial_hung_and_others_were_as_fast():
    turns = iter([passes("control", GB), hangs("control"), *[passes("control", GB)] * 3])
    _, (one,) = tried(lambda arm, _: passes(arm, GB) if arm == "treatment" else next(turns), reproducer=SPEED)

    assert proof_of(one).status == "not_tried"


def test_ranges_that_overlap_are_not_proved():
    rates = cycle([1.0, 0.9, 1.5, 0.8, 2.0, 1.2, 0.9, 0.7, 1.6, 1.0])
    plays, (one,) = tried(lambda arm, _: passes(arm, next(rates) * GB), reproducer=SPEED)

    assert plays.arms == ["treatment", "control"] * 8
    assert proof_of(one).status == "not_tried"
    assert proof_of(one).after is not None


def test_one_slow_trial_on_a_busy_machine_is_outvoted_by_further_ones():
    rates = chain([0.05, 0.1], cycle([1.0, 0.1]))
    plays, (one,) = tried(lambda arm, _: passes(arm, next(rates) * GB), reproducer=SPEED)

    assert plays.arms == ["treatment", "control"] * 8
    assert proof_of(one).status == "proved"
    assert proof_of(one).after == "1.00 GB/s (median of 8, 50 MB/s to 1.00 GB/s)"


def test_recording_with_thousands_of_trials_is_evaluated_quickly():
    attempts = (*[passes("treatment", GB), passes("control", 0.1 * GB)] * 5_000, passes("treatment", 0.05 * GB))
    one = Experiment(code="DD521", settings=ETH1, reproducer=SPEED, attempts=attempts)

    assert proof_of(one).status == "not_tried"


def test_gain_is_not_proved_if_the_library_never_read_the_setting():
    def scene(arm: Arm, _: Sequence[Setting]) -> Attempt:
        return hangs(arm) if arm == "control" else passes(arm, unread=("GLOO_SOCKET_IFNAME",))

    _, (one,) = tried(scene)

    assert proof_of(one).status == "not_tried"
    assert "does not show that it read GLOO_SOCKET_IFNAME" in (proof_of(one).reason or "")


def test_used_up_budget_starts_no_trial_and_gives_the_reason():
    plays, (one,) = tried(lambda arm, _: passes(arm), budget_s=-1.0)

    assert plays.arms == []
    assert proof_of(one) == Proof(reason="the time budget was used up")


def test_first_working_remedy_is_enough_if_ranks_only_have_to_meet():
    _, (first, second) = tried(lambda arm, _: passes(arm) if arm == "treatment" else hangs(arm), ETH1, ETH2)

    assert proof_of(first).status == "proved"
    assert proof_of(second) == Proof(reason="another remedy of this finding was proved first")


def test_one_slow_pair_of_trials_does_not_disprove():
    attempts = (passes("treatment", 1.0 * GB), passes("control", 0.9 * GB))
    proof = proof_of(Experiment(code="DD538", settings=ETH1, reproducer=SPEED, attempts=attempts))

    assert (proof.status, proof.reason) == ("not_tried", "tested, but the time was too short for enough trials")


def test_a_treatment_that_hangs_in_the_rest_of_the_budget_is_not_disproved():
    plays, (one,) = tried(lambda arm, _: hangs(arm), budget_s=2.0)

    assert plays.arms == ["treatment"] * 2
    assert max(plays.limits) < 2.1
    assert proof_of(one) == Proof(reason="the time budget was used up")


def test_spoiled_trial_is_repeated_once_and_then_inconclusive():
    def spoils(arm: Arm, _: Sequence[Setting]) -> Attempt:
        if arm == "treatment":
            return passes(arm)
        raise Spoiled("rank 1 was killed from outside (SIGKILL) during the test")

    plays, (one,) = tried(spoils)

    assert plays.arms == ["treatment", "control", "control"]
    assert [attempt.arm for attempt in one.attempts] == ["treatment"]
    assert proof_of(one) == Proof(reason="rank 1 was killed from outside (SIGKILL) during the test")


def test_run_that_ends_during_trials_keeps_them_without_a_conclusion():
    def ends(arm: Arm, _: Sequence[Setting]) -> Attempt:
        if arm == "treatment":
            return passes(arm)
        raise KeyboardInterrupt

    kept: list[Experiment] = []
    trials = Trials(Plays(ends), time.monotonic() + 60.0, kept, "gloo", lambda _text: None)
    with pytest.raises(KeyboardInterrupt):
        trials.compare([Experiment(code="DD521", settings=ETH1, reproducer=MEET)])

    assert [len(one.attempts) for one in kept] == [1]
    assert proof_of(kept[0]) == Proof(reason="the run ended before it was tried to the end")


def test_only_three_of_many_failures_are_listed_briefly():
    attempts = [Attempt(arm="treatment", outcome="failed", reason=f"{n}" + "y" * 10_000) for n in range(100)]
    proof = proof_of(Experiment(code="DD521", settings=ETH1, reproducer=MEET, attempts=tuple(attempts)))

    assert (proof.after or "").endswith("(1 of 100) and others")
    assert len(proof.after or "") < 800


# --- what a trial comes to ------------------------------------------------------------------------


def came_of(outcome: str, *evidence: RankEvidence, **more: object) -> Attempt:
    fields = {"ranks": (0, 1), "outcome": outcome, "limit_s": 1.0, "duration_s": 1.0, "evidence": evidence}
    record = TrialRecord.model_validate({"trial": "t3", "reproducer": MEET, **fields, **more})
    return attempt_of("control", TrialResult(record=record, readings=()))


KILLED = RankEvidence(rank=1, exit_code=-9)
VICTIM = RankEvidence(rank=0, raised=Raised(type="RuntimeError", message="Connection closed by peer", blames_peer=True))
FULL = RankEvidence(rank=0, raised=Raised(type="OSError", message="[Errno 28] No space left on device"))


@pytest.mark.parametrize(
    ("outcome", "evidence", "more", "why"),
    [
        ("broken", (VICTIM, KILLED), {}, "killed from outside"),
        ("broken", (FULL,), {}, "no room for its files"),
        ("broken", (RankEvidence(rank=0, exit_code=1),), {}, "exited without output"),
        ("stuck", (), {"lost_nodes": (1,)}, "a node left"),
        ("interrupted", (), {}, "a node left"),
        ("stuck", (), {"duration_s": 0.001}, "stopped, or got no processor time"),
        ("stuck", (), {"notes": (PAUSED,)}, "stopped, or got no processor time"),
        ("finished", (), {}, "no readable result"),
    ],
)
def test_trial_that_broke_for_other_reasons_does_not_judge_its_settings(outcome, evidence, more, why):
    with pytest.raises(Spoiled, match=why):
        came_of(outcome, *evidence, **more)


def test_crashed_rank_and_hang_to_the_limit_are_conclusive():
    crashed = came_of("broken", VICTIM, RankEvidence(rank=1, exit_code=-11))

    assert crashed.outcome == "failed"
    assert came_of("stuck").outcome == "hung"


# --- proofs on findings ---------------------------------------------------------------------------


def test_proved_remedy_proves_the_finding_and_a_disproved_one_goes_last():
    def scene(arm: Arm, settings: Sequence[Setting]) -> Attempt:
        good = bool(settings) and settings[0].value == "eth2"
        return passes(arm) if good else hangs(arm)

    _, kept = tried(scene, ETH1, ETH2)
    by_hand = Remedy(summary="by hand", commands=("ip link",))
    (found,) = with_proofs([finding(remedy(ETH1, "eth1"), by_hand, remedy(ETH2, "eth2"))], kept)

    assert [one.summary for one in found.remedies] == ["eth2", "by hand", "eth1"]
    assert found.confidence is Confidence.PROVED
    assert found.remedies[2].proof.status == "disproved"


def test_a_proof_belongs_to_the_value_that_was_tried():
    _, kept = tried(lambda arm, _: passes(arm) if arm == "treatment" else hangs(arm))
    (found,) = with_proofs([finding(remedy(ETH2))], kept)

    assert found.remedies[0].proof.status == "not_tried"
    assert found.confidence is Confidence.LIKELY


def test_cost_of_a_remedy_is_compared_with_the_healthy_pairs():
    reproducer = Reproducer(
        kind="exchange", ranks=(0, 3), size_bytes=1 << 26, healthy_bytes_per_s=18 * GB, healthy="the other pairs"
    )
    _, (one,) = tried(
        lambda arm, _: passes(arm, 11.2 * GB) if arm == "treatment" else hangs(arm), reproducer=reproducer
    )

    assert proof_of(one).after == "11.2 GB/s (median of 2, 11.2 to 11.2)"
    assert proof_of(one).reason == "38% slower than the other pairs (18.0 GB/s)"


# --- candidates -----------------------------------------------------------------------------------


def chosen(
    *remedies: Remedy,
    backend: str = "gloo",
    level: Level = Level.STANDARD,
    reproducer: Reproducer | None = MEET,
    severity: Severity = Severity.ERROR,
) -> list[str | None]:
    recording = Recording(world=World(backend=backend), options=Options(level=level))
    found = finding(*remedies, reproducer=reproducer, severity=severity)
    groups = candidates(recording, [found], {"GLOO_SOCKET_IFNAME": "eth9"})
    return [one.reason for group in groups for one in group]


def test_settings_that_a_fresh_rank_reads_are_tried():
    taken_away = (Setting(name="GLOO_SOCKET_IFNAME", action="unset"),)

    assert chosen(remedy(ETH1), remedy(taken_away)) == [None, None]


def test_setting_that_no_trial_can_show_is_not_tried():
    names = ("OMP_NUM_THREADS", "NCCL_NET_PLUGIN", "NCCL_P2P_DISABLE")
    reasons = chosen(*(remedy((Setting(name=name, value="1"),)) for name in names))

    assert reasons == [
        "OMP_NUM_THREADS is read when a library loads, which takes a run of its own: set it and run again",
        "no trial of ranks reads NCCL_NET_PLUGIN",
        "NCCL reads NCCL_P2P_DISABLE, and the ranks of this run use gloo",
    ]


def test_setting_from_a_file_is_not_unset_by_a_trial():
    taken_away = (Setting(name="NCCL_P2P_LEVEL", action="unset"),)
    (reason,) = chosen(remedy(taken_away), backend="nccl")

    assert reason is not None
    assert "does not change files" in reason


def test_info_finding_is_tried_only_at_level_thorough():
    assert chosen(remedy(ETH1), severity=Severity.INFO) == []
    assert chosen(remedy(ETH1), severity=Severity.INFO, level=Level.THOROUGH) == [None]


def test_finding_without_a_reproducer_is_not_tried():
    assert chosen(remedy(ETH1), reproducer=None) == []


def test_interface_that_does_not_exist_is_one_finding_when_two_trials_show_it():
    once = load("hang/gloo-interface-does-not-exist")
    twice = once.model_copy(update={"trials": (once.trials[0].model_copy(update={"trial": "t9"}), *once.trials)})

    assert [one.code for one in diagnose(twice).findings].count("DD617") == 1
