"""The traits of a node: its hardware, the versions of its software, and the settings of its job.

Reports contain them, so nodes of many runs can be compared, and a baseline is compared only with its own hardware.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.host import Host
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.settings.agreement import is_compared, is_of_a_host
from ddp_doctor.settings.table import variables


def _port_rates(fact: RdmaFact) -> str | None:
    """Return the rates of the ports that carry traffic: "8 400 Gbit/s"."""
    return counted([f"{port.rate_gbit_per_s or 0:g} Gbit/s" for _, port in fact.ports() if port.is_active])


def _speeds(fact: InterfacesFact) -> str | None:
    known = [each.speed_mbps for each in fact.interfaces if each.running and not each.loopback]
    return counted(sorted(f"{speed / 1000:g} Gbit/s" for speed in known if speed))


def counted(names: Sequence[str]) -> str | None:
    """Return ``7 NVIDIA H100, 1 NVIDIA A100``; None for an empty sequence."""
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or None


#: The versions, in the order that maintainers ask for them.
VERSIONS: dict[str, tuple[type[Fact], Callable[[Any], str | None]]] = {
    "torch": (Software, lambda fact: fact.torch_version or fact.torch_problem),
    "CUDA of torch": (Software, lambda fact: f"HIP {fact.torch_hip}" if fact.torch_hip else fact.torch_cuda),
    "NCCL": (Software, lambda fact: fact.nccl_loaded or fact.nccl_problem),
    "driver": (Software, lambda fact: fact.driver or fact.driver_problem),
    "GPUs": (GpusFact, lambda fact: counted([gpu.name or "unknown" for gpu in fact.gpus])),
    "Python": (Software, lambda fact: f"{fact.python}, {fact.machine}"),
    "kernel": (Host, lambda fact: fact.kernel and f"{fact.kernel}{', in a container' * fact.in_container}"),
}
_MORE: dict[str, tuple[type[Fact], Callable[[Any], str | None]]] = {
    "RDMA ports": (RdmaFact, _port_rates),
    "interfaces": (InterfacesFact, _speeds),
    "CPUs": (Host, lambda fact: f"{fact.usable_cpus:g}"),
}
#: Traits that must be equal for measurements to be of the same machine.
HARDWARE = ("GPUs", "RDMA ports", "interfaces", "CPUs")


def is_setting(trait: str) -> bool:
    """Return True if the trait is a variable: a missing one is unset."""
    return trait.isupper() and trait not in VERSIONS


#: Variables of a launcher differ from run to run by design.
_OF_EACH_RUN = ("torchrun", "launcher")


@once_a_recording
def other_settings(recording: Recording) -> dict[int, dict[str, str]]:
    """Return the known variables of each node that may differ between nodes. They are not traits."""
    traits = node_traits(recording)
    return {
        env.node: {
            name: value
            for name, value in sorted(env.fact.variables.items())
            if name in variables() and variables()[name].owner not in _OF_EACH_RUN and name not in traits[env.node]
        }
        for env in recording.facts(EnvVars)
    }


@once_a_recording
def node_traits(recording: Recording) -> dict[int, dict[str, str]]:
    """Return the hardware, the versions and the variables that should be equal on all nodes, by node."""
    found: dict[int, dict[str, str]] = {}
    for name, (kind, value) in (VERSIONS | _MORE).items():
        for fact in recording.facts(kind):
            if (trait := value(fact.fact)) is not None:
                found.setdefault(fact.node, {}).setdefault(name, trait)
    for env in recording.facts(EnvVars):
        of_job = {
            name: value
            for name, value in sorted(env.fact.variables.items())
            if is_compared(name) and not is_of_a_host(name)
        }
        found.setdefault(env.node, {}).update(of_job)
    return found
