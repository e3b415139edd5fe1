"""The class that runs the collectives of "nccl", according to the recorded torch and ranks."""

import pytest

from ddp_doctor.app import judge
from ddp_doctor.facts.collectives import ProcessGroupFact
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.views.software import backend_of_ranks, nccl_backends
from tests.readings import collected, plain_world

OFFERED = ("gloo", "nccl", "nccl-legacy", "nccl2")


def software(looks_up: bool | None, offered: tuple[str, ...] = (), switch: str | None = "0") -> Software:
    return Software(
        python="3.11.7",
        machine="x86_64",
        torch_version="2.16.0a0+git1234567",
        torch_looks_backends_up=looks_up,
        torch_backends=offered,
        torch_nccl2_switch=switch,
    )


def group(backend: str, impl: str | None, rank: int = 0) -> ProcessGroupFact:
    return ProcessGroupFact(
        backend=backend,
        backend_impl=impl,
        group_rank=rank,
        world_size=2,
        init_s=1.0,
        first_collective_s=0.1,
        device="cpu" if backend == "gloo" else f"cuda:{rank}",
        torch_version="2.16.0a0+git1234567",
        nccl_available=True,
        gloo_available=True,
        pid=100 + rank,
    )


def recording(*facts: Fact, backend: str = "nccl", command: str = "run") -> Recording:
    checks = {Software: "software", EnvVars: "env_vars", ProcessGroupFact: "process_group"}
    world = plain_world(1, 2, backend)
    return Recording(
        world=world,
        options=Options(command=command),
        readings=tuple(
            collected(checks[type(fact)], fact, rank=fact.group_rank if isinstance(fact, ProcessGroupFact) else None)
            for fact in facts
        ),
    )


@pytest.mark.parametrize(
    ("installed", "value", "expected"),
    [
        pytest.param(software(True, OFFERED), None, "nccl2", id="nccl2 is the default"),
        pytest.param(software(True, OFFERED), "0", "nccl-legacy", id="switched back"),
        pytest.param(software(True, OFFERED), "false", "nccl2", id="only 0 switches back"),
        pytest.param(software(True, OFFERED, "1"), None, "nccl-legacy", id="nccl2 is offered, not the default"),
        pytest.param(software(True, OFFERED, "1"), "1", "nccl2", id="switched on"),
        pytest.param(software(True, OFFERED, "1"), "0", "nccl-legacy", id="only 1 switches on"),
        pytest.param(software(True, OFFERED, None), None, None, id="a switch that is read otherwise"),
        pytest.param(software(False), None, "nccl", id="a torch with one class"),
        pytest.param(software(False), "0", "nccl", id="the switch is read by nobody"),
        pytest.param(software(True, ("gloo", "nccl")), None, None, id="not offered"),
        pytest.param(software(None), None, None, id="source unreadable"),
    ],
)
def test_backends_of_torch_and_its_switch_decide_before_ranks_run(installed, value, expected):
    env = EnvVars(variables={"TORCH_DIST_USE_NCCL2": value} if value is not None else {})

    assert nccl_backends(recording(installed, env)).get(0) == expected


def test_recorded_class_of_a_rank_counts_first():
    seen = recording(software(True, OFFERED), group("nccl", "nccl-legacy"))

    assert nccl_backends(seen) == {0: "nccl-legacy"}


def test_gloo_ranks_and_a_prolog_have_no_nccl_backend():
    assert nccl_backends(recording(group("gloo", "gloo"), backend="gloo")) == {}
    assert nccl_backends(recording(software(True, OFFERED), command="prolog")) == {}


@pytest.mark.parametrize(
    ("backend", "impl", "head"),
    [
        ("nccl", "nccl2", "over nccl (nccl2)."),
        ("nccl", "nccl-legacy", "over nccl (nccl-legacy)."),
        ("nccl", "nccl", "over nccl."),
        ("nccl", "acme", "over nccl (acme)."),
        ("nccl", None, "over nccl."),
        ("gloo", "gloo", "over gloo."),
    ],
)
def test_report_names_the_class_next_to_the_backend(backend, impl, head):
    report = judge(recording(group(backend, impl, 0), group(backend, impl, 1), backend=backend)).report

    assert report.world is not None
    assert (report.world.backend, report.world.backend_impl) == (backend, impl)
    assert head in report.summary


def test_ranks_with_different_classes_are_all_named():
    assert backend_of_ranks(recording(group("nccl", "nccl2", 0), group("nccl", "nccl-legacy", 1))) == (
        "nccl-legacy, nccl2"
    )
