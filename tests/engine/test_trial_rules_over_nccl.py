"""What the rules over trials say where NCCL connects the ranks in init_process_group, and of its words there."""

from collections.abc import Mapping
from typing import Any

import pytest

from ddp_doctor.checks.ddp.user_model.building import raises
from ddp_doctor.engine.hang.rules import TRIAL_RULES, deaths, devices, failed_starts, hangs, settings
from ddp_doctor.facts.ddp.user_model import Trouble, UserModel
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import Raised, RankEvidence, Step
from tests.readings import collected, only, plain_world, trial_of
from tests.recordings import load

ENTERED = Step(check="process_group", name="init_process_group", seq=1, detail="nccl", entered_at=2.0, where="w.py:98")
FIRST = Step(check="process_group", name="all_reduce", seq=1, entered_at=3.0, where="p.py:38")
IN_TORCH = ("/v/torch/distributed/distributed_c10d.py:1830 in init_process_group",)
STANDING: dict[str, Any] = {"state": "S", "stack": IN_TORCH, "steps": (ENTERED,)}


def _run(*ranks: Mapping[str, Any], nodes: int = 1, backend: str = "nccl", facts: tuple[Reading, ...] = ()):
    """A trial in which each rank stands in init_process_group, but for what is said of it."""
    per_node = len(ranks) // nodes
    evidence = tuple(
        RankEvidence(rank=number, node=number // per_node, began=True, **{**STANDING, **fields})
        for number, fields in enumerate(ranks)
    )
    broken = any(rank.raised for rank in evidence)
    outcome = "broken" if broken else "stuck"
    trial = trial_of(*evidence, backend=backend, outcome=outcome, judged_check="process_group", waited_s=60.0)
    return Recording(world=plain_world(nodes, per_node, backend), trials=(trial,), readings=facts)


def _raised(message: str, *, kind: str = "RuntimeError", blames_peer: bool = False, **fields: Any):
    raised = Raised(type=kind, message=message, where="p.py:38", blames_peer=blames_peer)
    return {"raised": raised, "stack": (), **fields}


RESET = _raised("Connection reset by peer [10.0.0.2]:4")


def _codes(recording: Recording) -> set[str]:
    return {finding.code for rule in TRIAL_RULES for finding in rule.apply(recording)}


# --- all in init, none left -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "ended"),
    [
        (({}, {}), "none left it within 60 s"),
        ((RESET, RESET), "all lost a peer in it (Connection reset by peer [10.0.0.2]:4)"),
        ((RESET, {}), "rank 0 lost a peer in it (Connection reset by peer [10.0.0.2]:4)"),
    ],
)
def test_of_ranks_that_lost_a_peer_none_is_said_to_have_waited(ranks, ended):
    found = only(hangs.nobody_left.apply(_run(*ranks)))

    assert found.title == f"All 2 ranks entered init_process_group of check process_group and {ended}"


# --- over the real NCCL on planted GPUs, in recordings -----------------------------------------------------


def test_before_any_trial_a_crash_blames_no_setting_and_a_text_the_only_one_that_it_speaks_of():
    crash, text = (
        load(f"hang/{name}").model_copy(update={"experiments": ()})
        for name in ("nccl-buffsize-kills-every-rank", "nccl-net-ib-without-adapters")
    )
    environment = collected("env_vars", EnvVars(variables={"NCCL_NET": "IB", "NCCL_DEBUG": "WARN"}))

    assert only(deaths.died.apply(crash)).culprits == ()
    assert only(failed_starts.everywhere.apply(text)).culprits == ()
    alone = only(failed_starts.everywhere.apply(text.model_copy(update={"readings": (environment,)})))
    assert [culprit.name for culprit in alone.culprits] == ["NCCL_NET"]


@pytest.mark.parametrize(
    ("message", "variables", "spoken_of"),
    [
        ('Unrecognized element token "garbage" when', {"NCCL_ALGO": "garbage", "NCCL_PROTO": "LL"}, ["NCCL_ALGO"]),
        ('Unrecognized element token "LL256" when', {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL256"}, ["NCCL_PROTO"]),
        ("NCCL_ALGO was set to NVLS.", {"NCCL_ALGO": "NVLS", "NCCL_PROTO": "LL"}, ["NCCL_ALGO"]),
        ("XML Parse : expected >, got ' '", {"NCCL_TOPO_FILE": "/a.xml", "NCCL_NET": "IB"}, ["NCCL_TOPO_FILE"]),
        ("network IB not found.", {"NCCL_NET": "IB"}, ["NCCL_NET"]),
        ("Unable to find address for: ib0", {"GLOO_SOCKET_IFNAME": "ib0"}, ["GLOO_SOCKET_IFNAME"]),
        ("Cuda failure 2 'out of memory'", {"NCCL_NET": "IB", "NCCL_IB_TIMEOUT": "2"}, []),
        ("unhandled system error (run with NCCL_DEBUG=INFO for details)", {"NCCL_DEBUG": "INFO"}, []),
        (  # which NCCL always has: what keeps it from its adapters is likelier
            "Failed to initialize any NET plugin",
            {"NCCL_NET": "IB", "NCCL_IB_HCA": "mlx5_99"},
            ["NCCL_IB_HCA", "NCCL_NET"],
        ),
    ],
)
def test_the_settings_that_a_text_speaks_of_are_in_force_and_meant(message, variables, spoken_of):
    recording = Recording(readings=(collected("env_vars", EnvVars(variables=variables)),))

    assert list(settings.spoken_of(recording, f"NCCL error\nLast error:\n{message}", 0)) == spoken_of


# --- no interface, a shared GPU --------------------------------------------------------------------------


@pytest.mark.parametrize(("shown", "codes"), [((0,), set()), ((0, 1), {"DD613"})])
def test_a_rank_beyond_the_gpus_of_its_node_is_not_to_blame(shown: tuple[int, ...], codes: set[str]):
    """job-sees-too-few-gpus says it; seen with torch 2.9.1 on planted GPUs."""
    gpus = collected("gpus", GpusFact(visible=shown))
    lacking = _raised("CUDA error: invalid device ordinal", kind="AcceleratorError")

    assert _codes(_run({}, lacking, facts=(gpus,))) == codes


# --- an operation on another GPU than the group's ------------------------------------------------------


def _elsewhere(bound: int, used: int) -> str:
    return f"ProcessGroupNCCL is bound to device cuda:{bound} but an operation was issued on cuda:{used}"


USED: dict[str, Any] = {"steps": (ENTERED.model_copy(update={"left_at": 2.5}), FIRST)}


def test_a_rank_that_has_not_come_yet_is_not_blamed_beside_those_on_another_gpu():
    recording = _run({"steps": (), "stack": ()}, *(_raised(_elsewhere(rank, 0), **USED) for rank in (1, 2)))

    assert _codes(recording) == {"DD609"}


def _model(rank: int, message: str, found_device: str | None = None) -> Reading:
    trouble = Trouble(phase="forward", type="RuntimeError", message=message, where="/home/me/net.py:31")
    fact = UserModel(model="net:make", device=f"cuda:{rank}", world_size=2, trouble=trouble, found_device=found_device)
    return collected("user_model", fact, rank=rank)


def test_a_model_that_reduces_on_another_gpu_is_named_by_its_line_and_by_no_other_rule():
    recording = Recording(readings=(_model(1, _elsewhere(1, 0)),))

    found = only(devices.another_gpu.apply(recording))

    assert [culprit.name for culprit in found.culprits][1:] == ["/home/me/net.py:31"]
    assert found.evidence[0].text == "rank 1 used cuda:0 in forward of net:make, but its group is bound to cuda:1"
    assert raises.apply(recording) == []


def test_a_model_that_raises_something_else_is_no_matter_of_devices():
    recording = Recording(readings=(_model(1, "the data set is empty"),))

    assert devices.another_gpu.apply(recording) == []
    assert len(raises.apply(recording)) == 1


# --- a torch that finds no backend ------------------------------------------------------------------------


UNKNOWN = _raised("Unknown c10d backend type NCCL", kind="AssertionError")


def _torch(*backends: str, looks_up: bool | None = True, node: int = 0) -> Reading:
    software = Software(
        python="3.12.3",
        machine="x86_64",
        torch_folder="/v/torch",
        torch_looks_backends_up=looks_up,
        torch_backends=backends,
    )
    return collected("software", software, node=node)


@pytest.mark.parametrize("ranks", [(UNKNOWN, UNKNOWN), (UNKNOWN, UNKNOWN, UNKNOWN, {})])
def test_a_backend_that_no_package_offers_is_left_to_the_finding_on_torchs_metadata(ranks):
    assert _codes(_run(*ranks, facts=(_torch(),))) == set()


@pytest.mark.parametrize(
    "facts",
    [
        (),
        (_torch("gloo", "nccl"),),
        (_torch("gloo"),),
        (_torch(looks_up=False),),
        (_torch(looks_up=None),),
        (_torch(node=1),),
    ],
)
def test_an_unknown_backend_that_the_software_does_not_explain_is_told_in_its_own_words(facts):
    found = only(failed_starts.everywhere.apply(_run(UNKNOWN, UNKNOWN, facts=facts)))

    assert found.title == "The nccl process group cannot start: Unknown c10d backend type NCCL"
