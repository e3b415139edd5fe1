"""Every remedy by settings in every recorded situation is complete and is read as intended."""

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest

from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge.versions import Version, release
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding, Remedy, Setting
from ddp_doctor.model.report import Report
from ddp_doctor.remedies.kinds import FOLLOWS, NO_TRIAL
from ddp_doctor.remedies.settings_to_apply import settings_to_apply
from ddp_doctor.render.pasted import docker_args, k8s_env
from ddp_doctor.settings import trials
from ddp_doctor.settings.interactions import conflicts, does_not_go_with, silenced, silencers
from ddp_doctor.settings.releases import Installed
from ddp_doctor.settings.table import never_read, variables
from ddp_doctor.settings.values import misread
from tests.recordings import SITUATIONS, judged, load


class Offer(NamedTuple):
    """A fix by settings, from one finding of one recording."""

    situation: str
    finding: Finding
    remedy: Remedy
    nccl: Version  # () if unknown
    torch: Version  # likewise

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
def _offers() -> list[Offer]:
    found = []
    for situation in SITUATIONS:
        software = load(situation).first(Software)
        nccl = release(software.nccl_loaded or "") if software else ()
        torch = release(software.torch_version or "") if software else ()
        found += [
            Offer(situation, finding, remedy, nccl, torch)
            for finding in judged(situation).report.findings
            for remedy in finding.remedies
            if remedy.settings
        ]
    return found


def _without(right: Callable[[Offer], object]) -> list[Offer]:
    """Return the offers that do not meet the condition."""
    return [offer for offer in _offers() if not right(offer)]


def test_setting_fixes_have_reason_undo_scope_and_reference():
    assert _without(lambda offer: all(setting.why for setting in offer.remedy.settings)) == []
    assert _without(lambda offer: offer.remedy.undo) == []
    assert _without(lambda offer: offer.remedy.scope == "job") == []
    assert _without(lambda offer: offer.remedy.references) == []


def test_variables_of_a_remedy_are_read_by_the_recorded_nccl():
    assert _without(lambda offer: all(_is_read(offer, setting) for setting in offer.remedy.settings)) == []


def _is_read(offer: Offer, setting: Setting) -> bool:
    if setting.action == "unset" and offer.finding.code in ("DD111", "DD112"):
        return setting.name in never_read() or setting.name not in variables()  # that is the finding
    if setting.name not in variables():
        return False
    of_release = setting.action == "set" and offer.nccl
    return not of_release or Installed(offer.nccl, offer.torch).reads(setting.name)


def test_values_of_a_remedy_are_read_as_intended():
    readings = [(offer, name, misread(name, value)) for offer in _offers() for name, value in offer.wanted.items()]

    assert [reading for reading in readings if reading[2] is not None] == []


def test_settings_of_a_remedy_neither_contradict_nor_disable_each_other():
    assert _without(lambda offer: not list(conflicts(offer.wanted, offer.nccl))) == []
    assert _without(lambda offer: not list(silenced(offer.wanted))) == []


def test_remedy_lists_its_conflicting_settings_but_not_the_settings_it_sets():
    assert _without(lambda offer: set(does_not_go_with(offer.wanted)) <= set(offer.remedy.conflicts)) == []
    assert _without(lambda offer: set(offer.remedy.conflicts) <= variables().keys() - offer.names) == []


def test_finding_with_a_possible_trial_has_a_reproducer_or_a_reason():
    tried = [
        offer
        for offer in _offers()
        if offer.finding.severity is not Severity.INFO
        if any(trials.why_not(offer.names, backend) is None for backend in ("nccl", "gloo"))
    ]
    told = [offer for offer in tried if offer.finding.reproduced_by is None]
    shown = [offer for offer in tried if offer.finding.reproduced_by is not None]

    assert [offer for offer in told if offer.remedy.proof.reason in (None, NO_TRIAL.reason)] == []
    assert [offer for offer in shown if offer.remedy.proof.reason == FOLLOWS.reason] == []


@cache
def _of_containers() -> list[tuple[Report, Finding, Remedy]]:
    reports = [judged(situation).report for situation in SITUATIONS]
    return [
        (report, finding, remedy)
        for report in reports
        for finding in report.findings
        for remedy in finding.remedies
        if remedy.container
    ]


def test_container_options_reach_docker_and_are_applied_for_errors():
    for report, finding, remedy in _of_containers():
        given = settings_to_apply(report)
        for_docker, for_a_pod = docker_args(given), k8s_env(given)
        first = next(remedy for remedy in finding.remedies if remedy.settings or remedy.container)

        for option in remedy.container:
            assert option in for_docker, finding.code
            assert f"# {option} of docker run is here: " in for_a_pod, finding.code
            applied = option in for_docker.splitlines()[-1].split()
            assert applied is (finding.severity is Severity.ERROR and remedy is first), finding.code


def test_container_options_cover_shared_locked_and_numa_memory():
    options = {option.partition("=")[0] for *_, remedy in _of_containers() for option in remedy.container}

    assert {"--shm-size", "--ipc", "--ulimit", "--cap-add"} <= options


def test_findings_offer_settings_at_all():
    assert len({offer.finding.code for offer in _offers()}) >= 50


def test_every_variable_that_trials_may_set_is_in_the_table():
    assert {*trials.names(), *trials.OF_LAUNCHER} - variables().keys() == set()


def test_each_setting_that_affects_others_is_a_conflict_of_some_setting():
    told = {name for other in variables() for value in ("0", "1", "IB") for name in does_not_go_with({other: value})}
    in_conflict = {name for variable in variables().values() for row in variable.conflicts for name in row.names}

    assert {row.name for row in silencers() if not row.needed and row.about != "plugin"} <= told
    assert {name for name in in_conflict if not re.search(r"_(MIN|MAX)_", name)} <= told  # those depend on numbers


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
def test_conflicts_of_a_setting_follow_from_the_rows_of_the_table(settings, names):
    assert does_not_go_with(settings) == names
