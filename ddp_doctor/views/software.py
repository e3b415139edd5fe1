"""The software of the nodes that the rules evaluate, and its mismatches.

For a job that requests "nccl", torch 2.14 and newer have two classes: nccl2, and nccl-legacy, which older releases call
nccl. They read different variables, write to different flight recorders and print different messages. torch 2.14 and
2.15 have different defaults (distributed/distributed_c10d.py, _register_builtin_nccl_backend).
"""

from collections.abc import Mapping

from ddp_doctor.facts.cluster import ConsistencyFact
from ddp_doctor.facts.collectives import ProcessGroupFact
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.nccl import NcclFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge import versions
from ddp_doctor.knowledge.versions import release
from ddp_doctor.model.choices import Backend, Severity
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording


def of_the_job(recording: Recording) -> list[FactAt[Software]]:
    """Return the facts to evaluate: a prolog runs in root's interpreter, whose torch is not the job's."""
    return [] if recording.command.is_of_root else recording.facts(Software)


def with_gpus(recording: Recording) -> list[FactAt[Software]]:
    """Return the nodes whose NVIDIA GPUs the job is meant to use."""
    return [
        software
        for software in of_the_job(recording)
        if software.fact.gpu_devices > 0
        and software.fact.driver is not None
        and software.fact.gpus_hidden_by is None
        and recording.options.backend is not Backend.GLOO
    ]


def folder_without_backends(fact: Software) -> str | None:
    """Return torch's directory if it searches there for backends that do not exist (DD210)."""
    if fact.torch_problem or not fact.torch_looks_backends_up or "gloo" in fact.torch_backends:
        return None
    return fact.torch_folder


def nodes_without_backends(recording: Recording) -> frozenset[int]:
    """Return the nodes whose torch finds no backend."""
    return frozenset(
        software.node for software in of_the_job(recording) if folder_without_backends(software.fact) is not None
    )


def other_nccl(fact: Software) -> tuple[str, str, str, str | None] | None:
    """Return the NCCL that torch would load, the one it was built with, the library and torch's CUDA if both differ."""
    loaded, needed, library = fact.nccl_loaded, fact.nccl_required_by_torch, fact.nccl_library
    if loaded is None or needed is None or library is None or release(loaded) == release(needed):
        return None
    return loaded, needed, library, fact.torch_cuda


def with_the_right_nccl(recording: Recording) -> dict[int, Software]:
    """Return the software of the nodes without an error about the NCCL that torch would load (DD205)."""
    others = ((software.node, other_nccl(software.fact)) for software in of_the_job(recording))
    differ = ((node, release(other[0]), release(other[1])) for node, other in others if other is not None)
    wrong = {node for node, loaded, needed in differ if versions.nccl_mismatch(loaded, needed) is Severity.ERROR}
    return {software.node: software.fact for software in recording.facts(Software) if software.node not in wrong}


def nodes_load_different_nccls(recording: Recording) -> bool:
    """Return True if nodes of a job on NCCL have different NCCLs and none of them is faulty (DD550)."""
    if not recording.on_nccl or recording.first(ConsistencyFact) is None:
        return False
    loaded = {fact.nccl_loaded for fact in with_the_right_nccl(recording).values()} - {None}
    return len(loaded) > 1


def nccl_of_gpu_nodes(recording: Recording) -> list[FactAt[NcclFact]]:
    """Return the nodes whose job uses NCCL. A prolog does not know the job's LD_LIBRARY_PATH."""
    nodes = {software.node for software in with_gpus(recording)}
    return [nccl for nccl in recording.facts(NcclFact) if nccl.node in nodes]


#: Chooses between the two; one value counts, and torch 2.14 and 2.15 have different ones.
SWITCH = "TORCH_DIST_USE_NCCL2"


@once_a_recording
def nccl_backends(recording: Recording) -> Mapping[int, str]:
    """Return the backend by node: "nccl2", "nccl-legacy" or "nccl", or another name that a rank recorded.

    The ranks' recordings count first. Without ranks, torch's list of backends and its switch decide. Nodes with neither
    are omitted.
    """
    environments = {env.node: env.fact.variables for env in recording.facts(EnvVars)}
    found = {}
    for software in of_the_job(recording):
        backend = _expected_backend(software.fact, environments.get(software.node, {}))
        if backend is not None:
            found[software.node] = backend
    for rank in recording.facts(ProcessGroupFact):
        if rank.fact.backend == "nccl" and rank.fact.backend_impl is not None:
            found[rank.node] = rank.fact.backend_impl
    return found


def is_for_cpus(recording: Recording) -> bool:
    """Return True if all known torch builds have neither CUDA nor ROCm."""
    torches = [node.fact for node in recording.facts(Software) if node.fact.torch_version]
    return bool(torches) and not any(torch.torch_cuda or torch.torch_hip for torch in torches)


def backend_of_ranks(recording: Recording) -> str | None:
    """Return the class of the backend that the ranks recorded, or all if they differ; None without any."""
    ranks = recording.facts(ProcessGroupFact)
    return ", ".join(sorted({rank.fact.backend_impl for rank in ranks if rank.fact.backend_impl})) or None


def _expected_backend(software: Software, env: Mapping[str, str]) -> str | None:
    """Return the class that "nccl" means, by torch's backends and how it reads its switch."""
    if software.torch_looks_backends_up is False:
        return "nccl"
    if "nccl2" not in software.torch_backends or software.torch_nccl2_switch is None:
        return None
    is_default = software.torch_nccl2_switch == "0"
    is_switched = env.get(SWITCH) == software.torch_nccl2_switch
    return "nccl2" if is_default != is_switched else "nccl-legacy"
