"""What the rules over trials say where NCCL connects the ranks in init_process_group, and of its words there."""

from collections.abc import Mapping
from typing import Any

import pytest

from ddp_doctor.checks.ddp.user_model.building import raises, takes_another_gpu
from ddp_doctor.engine.hang.rules import TRIAL_RULES, deaths, devices, failed_starts, hangs, links, settings
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
NO_INTERFACE = "n:1:1 [0] bootstrap.cc:99 NCCL WARN Bootstrap : no socket interface found\n"
VAGUE = "Failed to get NCCL unique ID: unhandled system error (run with NCCL_DEBUG=INFO for details)"


def _run(*ranks: Mapping[str, Any], nodes: int = 1, backend: str = "nccl", facts: tuple[Reading, ...] = ()):
    """A trial in which each rank stands in init_process_group, but for what is said of it."""
    per_node = len(ranks) // nodes
    evidence = tuple(
        RankEvidence(rank=number, node=number // per_node, began=True, **_standing(fields))
        for number, fields in enumerate(ranks)
    )
    broken = any(rank.raised for rank in evidence)
    outcome = "broken" if broken else "stuck"
    trial = trial_of(*evidence, backend=backend, outcome=outcome, judged_check="process_group", waited_s=60.0)
    return Recording(world=plain_world(nodes, per_node, backend), trials=(trial,), readings=facts)


def _standing(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"state": "S", "stack": IN_TORCH, "steps": (ENTERED,), **fields}


def _raised(message: str, *, kind: str = "RuntimeError", blames_peer: bool = False, **fields: Any):
    raised = Raised(type=kind, message=message, where="p.py:38", blames_peer=blames_peer)
    return {"raised": raised, "stack": (), **fields}


RESET = _raised("Connection reset by peer [10.0.0.2]:4")


def _codes(recording: Recording) -> set[str]:
    return {finding.code for rule in TRIAL_RULES for finding in rule.apply(recording)}


# --- all in init, none left -------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_init_that_nobody_leaves_is_laid_to_a_link_with_the_network_before_p2p(nodes):
    found = only(hangs.nobody_left.apply(_run({}, {}, {}, {}, nodes=nodes)))

    assert "entered init_process_group of the check process_group and none left it within 60 s" in found.title
    assert found.detail.endswith("and NCCL connects them: over sockets, then from GPU to GPU.")
    network, p2p = found.remedies
    assert network.summary.startswith("Look at what connects them: firewall rules")
    assert p2p.summary.startswith("Turn GPU peer-to-peer off")
    assert found.culprits == ()


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

    assert found.title == f"All 2 ranks entered init_process_group of the check process_group and {ended}"


def test_an_init_over_gloo_that_nobody_leaves_is_laid_to_the_network_alone():
    found = only(hangs.nobody_left.apply(_run({}, {}, backend="gloo")))

    assert found.detail.endswith("and gloo connects them over sockets.")
    (network,) = found.remedies
    assert network.summary.startswith("Look at what connects them: firewall rules")


def test_of_two_ranks_the_one_still_in_init_makes_the_link_a_suspect_with_the_network_among_its_remedies():
    left = ENTERED.model_copy(update={"left_at": 2.5})
    found = only(links.pair.apply(_run({"steps": (left, FIRST), "stack": ("p.py:38 in probe",)}, {})))

    assert (
        "both entered init_process_group of the check process_group and rank 1 did not leave it within 60 s"
        in found.title
    )
    assert found.remedies[0].summary.startswith("Look at what connects them")


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


def test_the_setting_is_named_though_only_the_rank_that_makes_nccls_id_raised():
    environment = collected("env_vars", EnvVars(variables={"NCCL_SOCKET_IFNAME": "ib9"}))
    recording = _run(_raised(VAGUE, blames_peer=True, output_tail=NO_INTERFACE), {}, {}, facts=(environment,))

    found = only(failed_starts.everywhere.apply(recording))

    assert found.title == (
        "The nccl process group cannot start with NCCL_SOCKET_IFNAME=ib9: Bootstrap : no socket interface found"
    )
    assert found.detail == "Rank 0 raised RuntimeError in init_process_group; ranks 1, 2 wait for it."
    assert [culprit.name for culprit in found.culprits] == ["NCCL_SOCKET_IFNAME"]
    assert _codes(recording) == {"DD617"}


def test_the_rank_is_named_where_no_setting_leaves_it_without_an_interface():
    recording = _run({}, _raised(VAGUE, blames_peer=True, output_tail=NO_INTERFACE), {})

    found = only(deaths.raised.apply(recording))

    assert found.title.startswith("Rank 1 (CUDA device 1) raised RuntimeError")
    assert found.detail.startswith(f"It says: {VAGUE} Last error: Bootstrap : no socket interface found.")
    assert _codes(recording) == {"DD613"}


@pytest.mark.parametrize(("shown", "codes"), [((0,), set()), ((0, 1), {"DD613"})])
def test_a_rank_beyond_the_gpus_of_its_node_is_not_to_blame(shown: tuple[int, ...], codes: set[str]):
    """job-sees-too-few-gpus says it; seen with torch 2.9.1 on planted GPUs."""
    gpus = collected("gpus", GpusFact(visible=shown))
    lacking = _raised("CUDA error: invalid device ordinal", kind="AcceleratorError")

    assert _codes(_run({}, lacking, facts=(gpus,))) == codes


def test_a_rank_with_a_fault_of_its_own_is_named_beside_the_setting():
    environment = collected("env_vars", EnvVars(variables={"NCCL_SOCKET_IFNAME": "ib9"}))
    lacking = _raised(VAGUE, blames_peer=True, output_tail=NO_INTERFACE)
    recording = _run(lacking, _raised("CUDA error: invalid argument"), {}, {}, facts=(environment,))

    assert _codes(recording) == {"DD613", "DD617"}


def test_a_later_communicator_without_an_interface_is_the_ranks_own_exception():
    environment = collected("env_vars", EnvVars(variables={"NCCL_SOCKET_IFNAME": "ib9"}))
    later: dict[str, Any] = {"steps": (FIRST.model_copy(update={"check": "p2p", "left_at": None}),)}
    lacking = _raised(VAGUE, blames_peer=True, output_tail=NO_INTERFACE, **later)

    assert _codes(_run(lacking, later, later, facts=(environment,))) == {"DD613"}


@pytest.mark.parametrize(
    "message",
    [
        "Failed to initialize NCCL communicator: unhandled system error \nNCCL Last Error: Bootstrap : {why}",
        "ncclCommInitRankConfig failed: unhandled system error \nNCCL Last Error: Bootstrap : {why}",
        "NCCL error in: NCCLUtils.cpp:94\nLast error:\nBootstrap : {why}",
    ],
)
def test_all_ranks_without_an_interface_are_one_finding_in_the_words_of_nccl(message):
    ranks = [_raised(message.format(why="no socket interface found")) for _ in range(2)]

    found = only(failed_starts.everywhere.apply(_run(*ranks)))

    assert found.title == "The nccl process group cannot start: Bootstrap : no socket interface found"
    assert found.detail == (
        "Both ranks raised RuntimeError in init_process_group. In its own words: NCCL finds no network interface with"
        " an address on rank 0 (ddp-doctor explain DDJ141)."
    )


@pytest.mark.parametrize("shown", ["exception", "log"])
def test_a_gpu_that_two_ranks_share_is_named_by_the_exception_or_by_nccls_log(shown):
    said = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000"
    message = "Failed to initialize NCCL communicator: invalid usage (run with NCCL_DEBUG=WARN for details)"
    rank = (
        _raised(f"{message} \nNCCL Last Error: {said}")
        if shown == "exception"
        else _raised(message, output_tail=f"n:1:1 [0] init.cc:1100 NCCL WARN {said}\n")
    )
    recording = _run(rank, rank, {})

    found = only(failed_starts.everywhere.apply(recording))

    assert found.title == "NCCL cannot start because ranks share a GPU: ranks 0, 1 on GPU 0000:03:00.0"
    assert _codes(recording) == {"DD617"}


# --- an operation on another GPU than the group's ------------------------------------------------------


def _elsewhere(bound: int, used: int) -> str:
    return f"ProcessGroupNCCL is bound to device cuda:{bound} but an operation was issued on cuda:{used}"


USED: dict[str, Any] = {"steps": (ENTERED.model_copy(update={"left_at": 2.5}), FIRST)}


def test_a_rank_that_uses_another_gpu_than_its_groups_is_named_with_both():
    recording = _run(USED, _raised(_elsewhere(1, 0), **USED), USED)

    found = only(devices.another_gpu.apply(recording))

    assert found.title == "Rank 1 (CUDA device 1) used cuda:0, but its NCCL group is bound to cuda:1"
    assert "since torch 2.15 it is device_id, else LOCAL_RANK modulo" in found.detail
    assert [culprit.rank for culprit in found.culprits] == [1]
    assert any("device_id=device" in command for command in found.remedies[0].commands)
    assert _codes(recording) == {"DD609"}


@pytest.mark.parametrize("raising", [(1, 2, 3), (1, 2), (0, 1, 2, 3)])
def test_ranks_that_all_or_mostly_use_another_gpu_are_one_finding(raising):
    ranks = [_raised(_elsewhere(rank, 7), **USED) if rank in raising else USED for rank in range(4)]
    recording = _run(*ranks)

    found = only(devices.another_gpu.apply(recording))

    assert "used other GPUs than their NCCL groups are bound to: " in found.title
    assert "rank 2 used cuda:7, not cuda:2" in found.title
    assert tuple(culprit.rank for culprit in found.culprits) == raising
    assert _codes(recording) == {"DD609"}


def test_a_rank_that_has_not_come_yet_is_not_blamed_beside_those_on_another_gpu():
    recording = _run({"steps": (), "stack": ()}, *(_raised(_elsewhere(rank, 0), **USED) for rank in (1, 2)))

    assert _codes(recording) == {"DD609"}


def test_a_rank_that_was_killed_is_named_beside_the_one_on_another_gpu():
    killed = {**USED, "exit_code": -9, "exited_at": 3.0, "state": None}

    assert _codes(_run(USED, killed, _raised(_elsewhere(2, 0), **USED))) == {"DD609", "DD612"}


def _model(rank: int, message: str, found_device: str | None = None) -> Reading:
    trouble = Trouble(phase="forward", type="RuntimeError", message=message, where="/home/me/net.py:31")
    fact = UserModel(model="net:make", device=f"cuda:{rank}", world_size=2, trouble=trouble, found_device=found_device)
    return collected("user_model", fact, rank=rank)


def test_a_model_that_reduces_on_another_gpu_is_named_by_its_line_and_by_no_other_rule():
    recording = Recording(readings=(_model(1, _elsewhere(1, 0)),))

    found = only(devices.another_gpu.apply(recording))

    assert [culprit.name for culprit in found.culprits][1:] == ["/home/me/net.py:31"]
    assert found.evidence[0].text == "rank 1 used cuda:0 in forward of net:make; its group is bound to cuda:1"
    assert raises.apply(recording) == []


def test_a_factory_that_makes_another_gpu_the_current_one_explains_operations_on_it():
    recording = Recording(readings=(_model(1, _elsewhere(1, 0), found_device="cuda:0"),))

    assert devices.another_gpu.apply(recording) == []
    assert raises.apply(recording) == []
    assert len(takes_another_gpu.apply(recording)) == 1


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


def test_one_node_whose_torch_finds_no_backend_is_left_to_the_finding_on_torchs_metadata():
    facts = (_torch("gloo", "nccl"), _torch(node=1))

    assert _codes(_run({}, {}, UNKNOWN, UNKNOWN, nodes=2, facts=facts)) == set()


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
