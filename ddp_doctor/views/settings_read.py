"""The environments as the installed libraries read them, and the values that they misread or refuse."""

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
    """Yield the environments without variables of AMD's RCCL (torch for ROCm) or of torch's other class for NCCL.

    RCCL reads NCCL's names and has others with the same prefix (NCCL_LIBIBVERBS_SO is one), with its own values and
    defaults (ROCm's documentation, "RCCL environment variables"). The table is of NVIDIA's NCCL.
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
    """Return True if only torch's other class for "nccl" reads a variable."""
    known = variables().get(name)
    return known is not None and is_of_another_backend(known, backend)


def with_rccl(recording: Recording) -> frozenset[int]:
    """Return the nodes whose torch is built for ROCm."""
    written = (node.node for node in recording.facts(SettingText) if node.fact.rocm)
    return frozenset(written).union(node.node for node in of_the_job(recording) if node.fact.torch_hip)


def installed(recording: Recording) -> Mapping[int, Installed]:
    """Return the releases on each node with an environment, which decide which variables are read there."""
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
    """A value that does not have the effect it states, or that stops the job."""

    variable: Variable
    value: str
    found: Misread

    def stops(self, backend: str) -> bool:
        """Return True if a process group of this backend certainly reads it and fails because of it."""
        always = ("import torch.distributed", "every process group", f"{backend} process group".lower())
        return self.found.fate != "misread" and (self.variable.read_when or "").lower() in always


def misread_values(env: Mapping[str, str], releases: Installed) -> Iterator[MisreadValue]:
    """Yield the values of one environment that these releases misread or refuse."""
    for name, value in env.items():
        found = misread(name, value, releases.nccl)
        if found:
            variable = variables()[name]
            at = releases.of(variable)
            if not at or status_at(variable, at) == "read":
                yield MisreadValue(variable, value, found)


def has_a_refused_value(recording: Recording) -> bool:
    """Return True if the run's own process group refuses a value on some node (DD122 as an error)."""
    backend = recording.world.backend if recording.world else ""
    of_node = installed(recording)
    # Most of thousands of nodes are equal.
    alike = {(frozenset(node.fact.variables.items()), of_node[node.node]) for node in judged(recording)}
    return any(value.stops(backend) for env, releases in alike for value in misread_values(dict(env), releases))
