"""Which class of torch carries out the collectives of a job that asks for "nccl".

torch 2.14 and newer have two: nccl2, and nccl-legacy, which older releases call nccl. They read different variables,
write to different flight recorders and use different words. By default 2.14 builds the one, 2.15 the other
(distributed/distributed_c10d.py, _register_builtin_nccl_backend).
"""

from collections.abc import Mapping

from ddp_doctor.facts.collectives import ProcessGroupFact
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.software import of_the_job

#: Chooses between the two; one value counts, and torch 2.14 and 2.15 have different ones.
SWITCH = "TORCH_DIST_USE_NCCL2"


def nccl_backends(recording: Recording) -> Mapping[int, str]:
    """By node: "nccl2", "nccl-legacy" or "nccl", or another name that a rank recorded.

    What the ranks recorded counts first. Without ranks, torch's list of backends and its switch decide. A node is
    left out where neither is known.
    """
    return recording.once("NCCL backend of each node", lambda: _nccl_backends(recording))


def backend_of_ranks(recording: Recording) -> str | None:
    """The class behind the backend that the ranks recorded, all where they differ; None where no rank recorded one."""
    ranks = recording.facts(ProcessGroupFact)
    return ", ".join(sorted({rank.fact.backend_impl for rank in ranks if rank.fact.backend_impl})) or None


def _nccl_backends(recording: Recording) -> dict[int, str]:
    environments = {env.node: env.fact.variables for env in recording.facts(EnvVars)}
    found = {}
    for software in of_the_job(recording):
        backend = _expected(software.fact, environments.get(software.node, {}))
        if backend is not None:
            found[software.node] = backend
    for rank in recording.facts(ProcessGroupFact):
        if rank.fact.backend == "nccl" and rank.fact.backend_impl is not None:
            found[rank.node] = rank.fact.backend_impl
    return found


def _expected(software: Software, env: Mapping[str, str]) -> str | None:
    """What "nccl" stands for, by what torch offers and how it reads its switch."""
    if software.torch_looks_backends_up is False:
        return "nccl"
    if "nccl2" not in software.torch_backends or software.torch_nccl2_switch is None:
        return None
    is_default = software.torch_nccl2_switch == "0"
    is_switched = env.get(SWITCH) == software.torch_nccl2_switch
    return "nccl2" if is_default != is_switched else "nccl-legacy"
