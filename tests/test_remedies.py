"""Every remedy made of settings, in every recorded situation: it says all there is to say, and it is read as meant."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from ddp_doctor import app
from ddp_doctor.facts.software import Software
from ddp_doctor.knowledge import trials
from ddp_doctor.knowledge.setting_company import DECIDING, does_not_go_with
from ddp_doctor.knowledge.setting_conflicts import conflicts
from ddp_doctor.knowledge.setting_pairs import BESIDE, idle
from ddp_doctor.knowledge.values import misread
from ddp_doctor.knowledge.variables import never_read, status_at, variables
from ddp_doctor.knowledge.versions import Version, release
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.phrases.settings import FOLLOWS, NO_TRIAL
from ddp_doctor.render import docker_args, handover, k8s_env

RECORDINGS = Path(__file__).parent / "recordings"


class Offer(NamedTuple):
    """One remedy made of settings, of one finding of one recording."""

    situation: str
    finding: Finding
    remedy: Remedy
    nccl: Version  # () where it is not known

    def __repr__(self) -> str:
        names = ",".join(dict.fromkeys(one.name for one in self.remedy.settings))
        return f"{self.situation}-{self.finding.code}-{names}"

    @property
    def names(self) -> set[str]:
        return {one.name for one in self.remedy.settings}

    @property
    def wanted(self) -> dict[str, str]:
        return {one.name: one.value or "" for one in self.remedy.settings if one.action == "set"}


@cache
def _recordings() -> dict[str, Recording]:
    paths = sorted(RECORDINGS.glob("*.json"))
    return {path.stem: app.load_recording(path) for path in paths if not path.match("*.expected.json")}


@cache
def _offers() -> list[Offer]:
    found = []
    for situation, recording in _recordings().items():
        software = recording.first(Software)
        nccl = release(software.nccl_loaded or "") if software else ()
        found += [
            Offer(situation, finding, remedy, nccl)
            for finding in app.judge(recording).report.findings
            for remedy in finding.remedies
            if remedy.settings
        ]
    return found


every = pytest.mark.parametrize("offer", _offers(), ids=repr)


@every
def test_a_remedy_made_of_settings_says_why_what_it_costs_how_to_undo_it_and_where_that_stands(offer: Offer):
    remedy = offer.remedy

    assert all(one.why for one in remedy.settings)
    assert remedy.cost
    assert remedy.undo
    assert remedy.scope == "job"
    assert remedy.references


@every
def test_its_variables_are_known_and_read_by_the_nccl_of_the_recording(offer: Offer):
    for one in offer.remedy.settings:
        if one.action == "unset" and offer.finding.code in ("DD111", "DD112"):
            assert one.name in never_read() or one.name not in variables()  # that is the finding
        else:
            assert one.name in variables()
        if one.action == "set" and offer.nccl:
            assert status_at(variables()[one.name], offer.nccl) == "read"


@every
def test_its_values_are_read_as_they_are_meant(offer: Offer):
    assert [misread(name, value) for name, value in offer.wanted.items()] == [None] * len(offer.wanted)


@every
def test_its_settings_neither_contradict_each_other_nor_make_each_other_idle(offer: Offer):
    assert not list(conflicts(offer.wanted, offer.nccl))
    assert not list(idle(offer.wanted))


@every
def test_it_says_beside_which_settings_it_fails_and_none_of_them_is_its_own(offer: Offer):
    assert set(does_not_go_with(offer.wanted)) <= set(offer.remedy.conflicts)
    assert set(offer.remedy.conflicts) <= variables().keys() - offer.names


@every
def test_where_a_trial_could_set_it_the_finding_says_how_it_shows_or_why_it_is_not_tried(offer: Offer):
    finding, proof = offer.finding, offer.remedy.proof
    can = any(trials.why_not(offer.names, backend) is None for backend in ("nccl", "gloo"))
    if finding.severity is Severity.INFO or not can:
        return

    if finding.shown_by is None:
        assert proof.reason not in (None, NO_TRIAL.reason)
    else:
        assert proof.reason != FOLLOWS.reason


@cache
def _of_containers() -> list[tuple[Report, Finding, Remedy]]:
    reports = [app.judge(recording).report for recording in _recordings().values()]
    return [
        (report, finding, remedy)
        for report in reports
        for finding in report.findings
        for remedy in finding.remedies
        if remedy.container
    ]


@pytest.mark.parametrize(
    ("report", "finding", "remedy"),
    _of_containers(),
    ids=[f"{finding.code}-{remedy.container[0]}" for _, finding, remedy in _of_containers()],
)
def test_an_option_for_containers_reaches_whoever_starts_them_and_an_error_applies_it(
    report: Report, finding: Finding, remedy: Remedy
):
    given = handover.of(report)
    for_docker, for_a_pod = docker_args.render(given), k8s_env.render(given)
    first = next(one for one in finding.remedies if one.settings or one.container)

    for option in remedy.container:
        assert option in for_docker
        assert f"# {option} of docker run is here: " in for_a_pod
        applied = option in for_docker.splitlines()[-1].split()
        assert applied is (finding.severity is Severity.ERROR and remedy is first)


def test_containers_are_given_shared_memory_locked_memory_and_the_right_to_place_memory():
    options = {one.partition("=")[0] for *_, remedy in _of_containers() for one in remedy.container}

    assert {"--shm-size", "--ipc", "--ulimit", "--cap-add"} <= options


def test_findings_offer_settings_at_all():
    assert len({offer.finding.code for offer in _offers()}) >= 50


def test_every_variable_that_trials_may_set_is_in_the_table():
    assert {*trials.names(), *trials.OF_LAUNCHER} - variables().keys() == set()


def test_each_row_of_the_tables_of_pairs_is_decided_by_a_value_that_remedies_are_held_against():
    deciding = [next(iter(one.items())) for one in DECIDING]
    rows = [row for row in BESIDE if not row.needs_it]

    assert [
        row
        for row in rows
        if not any(name == row.name and row.holds({name: value}) for name, value in deciding)
    ] == []
    named = {
        name
        for other in variables()
        for value in ("0", "1", "IB")
        for name in does_not_go_with({other: value})
    }
    assert {name for one in DECIDING for name in one} - named == set()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"NCCL_IB_GID_INDEX": "3"}, ("NCCL_IB_DISABLE", "NCCL_NET")),
        ({"NCCL_IB_DISABLE": "1"}, ("NCCL_NET",)),
        ({"NCCL_SHM_DISABLE": "1"}, ("NCCL_P2P_DISABLE",)),
        ({"NCCL_P2P_DISABLE": "1"}, ("NCCL_SHM_DISABLE",)),
        ({"NCCL_P2P_LEVEL": "NVL"}, ("NCCL_P2P_DISABLE",)),
        ({"NCCL_NVLS_ENABLE": "0"}, ("NCCL_ALGO",)),
        ({"NCCL_CUMEM_ENABLE": "0"}, ("NCCL_MNNVL_ENABLE",)),
        ({"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}, ("NCCL_NET",)),
        ({"NCCL_IB_DISABLE": "0"}, ()),
        ({"GLOO_SOCKET_IFNAME": "eth1"}, ()),
        ({}, ()),
    ],
    ids=str,
)
def test_what_a_setting_does_not_go_with_follows_from_the_tables_of_pairs(settings, names):
    assert does_not_go_with(settings) == names
