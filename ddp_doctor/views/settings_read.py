"""The environments as the installed libraries read them, and the values that these misread or refuse."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ddp_doctor.facts.node.env_vars import EnvVars, SettingText
from ddp_doctor.knowledge.versions import release
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.settings.names import is_of_rccl
from ddp_doctor.settings.releases import Installed, is_of_another_backend, status_at
from ddp_doctor.settings.table import Variable, variables
from ddp_doctor.settings.values import Misread, misread
from ddp_doctor.views.software import nccl_backends, of_the_job


def judged(recording: Recording) -> Iterator[FactAt[EnvVars]]:
    """The environments, without what AMD's RCCL reads where torch is built for ROCm, or torch's other class for NCCL.

    RCCL takes NCCL's names and has others that begin so (NCCL_LIBIBVERBS_SO is one), with values and defaults of
    its own (ROCm's documentation, "RCCL environment variables"); the table is of NVIDIA's NCCL.
    """
    rccl, backends = with_rccl(recording), nccl_backends(recording)
    for node in recording.facts(EnvVars):
        own = {
            name: value
            for name, value in node.fact.variables.items()
            if not (node.node in rccl and is_of_rccl(name))
            and not read_by_another_backend(name, backends.get(node.node))
        }
        yield replace(node, fact=node.fact.model_copy(update={"variables": own}))


def read_by_another_backend(name: str, backend: str | None) -> bool:
    """Whether only torch's other class behind "nccl" reads a variable."""
    known = variables().get(name)
    return known is not None and is_of_another_backend(known, backend)


def with_rccl(recording: Recording) -> frozenset[int]:
    """The nodes whose torch is built for ROCm."""
    written = (node.node for node in recording.facts(SettingText) if node.fact.rocm)
    return frozenset(written).union(node.node for node in of_the_job(recording) if node.fact.torch_hip)


def installed(recording: Recording) -> Mapping[int, Installed]:
    """The releases of each node with an environment, which decide which variables are read there."""
    software = {node.node: node.fact for node in of_the_job(recording)}
    backends = nccl_backends(recording)
    found = {}
    for node in recording.facts(EnvVars):
        fact, backend = software.get(node.node), backends.get(node.node)
        found[node.node] = Installed(backend=backend)
        if fact is not None:
            nccl = () if fact.torch_hip else release(fact.nccl_loaded or "")
            found[node.node] = Installed(nccl, release(fact.torch_version or ""), backend)
        elif (text := recording.first(SettingText)) is not None and text.torch:
            nccl = () if text.rocm else release(text.nccl or "")
            found[node.node] = Installed(nccl, release(text.torch), backend)
    return found


@dataclass(frozen=True)
class MisreadValue:
    """A value that does not do what it says, or that stops the job."""

    variable: Variable
    value: str
    found: Misread

    def stops(self, backend: str) -> bool:
        """Whether a process group of this backend reads it for certain, and ends with it."""
        always = ("import torch.distributed", "every process group", f"{backend} process group".lower())
        return self.found.fate != "misread" and (self.variable.read_when or "").lower() in always


def misread_values(env: Mapping[str, str], releases: Installed) -> Iterator[MisreadValue]:
    """The values of one environment that these releases misread or refuse."""
    for name, value in env.items():
        found = misread(name, value, releases.nccl)
        if found:
            variable = variables()[name]
            at = releases.of(variable)
            if not at or status_at(variable, at) == "read":
                yield MisreadValue(variable, value, found)


def has_a_refused_value(recording: Recording) -> bool:
    """Whether the run's own process group refuses a value on some node (DD122, where it is an error)."""
    backend = recording.world.backend if recording.world else ""
    of_node = installed(recording)
    # Most of thousands of nodes are equal.
    alike = {(frozenset(node.fact.variables.items()), of_node[node.node]) for node in judged(recording)}
    return any(value.stops(backend) for env, releases in alike for value in misread_values(dict(env), releases))
