"""What ran where, and the versions; nodes are told apart where they differ.

nodes    node1 and node2: 16 ranks, nccl
torch    2.15.0+cu130 on node1; 2.13.0+cu130 on node2
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.host import Host
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.base import grouped
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.wording.nodes import host, name_list

F = TypeVar("F", bound=Fact)


def lines(report: Report, recording: Recording) -> Iterator[tuple[str, str]]:
    """Name and text of each."""
    yield "ddp-doctor", f"{report.tool.version}, {recording.options.command}"
    job = f", {report.job.scheduler} job {report.job.id}" if report.job else ""
    yield "when", f"{report.started_at}, {report.duration_s:.1f} s{job}"
    if report.world is not None:
        names = name_list([node.hostname for node in report.nodes])
        size = report.world.world_size
        ranks = f": {size} rank{'s' if size > 1 else ''}, {report.world.backend}" if size else ""
        yield "nodes", f"{names}{ranks}"
    for name, versions in _VERSIONS.items():
        if told := versions(recording):
            yield name, told


def _each(kind: type[F], value: Callable[[F], str | None]) -> Callable[[Recording], str]:
    """What the facts of all nodes say, with the nodes where they differ."""

    def told(recording: Recording) -> str:
        by_value = grouped(
            (said, host(recording, found.node))
            for found in recording.facts(kind)
            if (said := value(found.fact)) is not None
        )
        if len(by_value) < 2:
            return "".join(by_value)
        return "; ".join(f"{said} on {name_list(nodes)}" for said, nodes in by_value.items())

    return told


def _gpus(fact: GpusFact) -> str | None:
    models = [gpu.name or "unknown" for gpu in fact.gpus]
    return ", ".join(f"{models.count(model)} {model}" for model in dict.fromkeys(models)) or None


def _cuda(fact: Software) -> str | None:
    return f"HIP {fact.torch_hip}" if fact.torch_hip else fact.torch_cuda


#: In the order in which a maintainer asks for them.
_VERSIONS: dict[str, Callable[[Recording], str]] = {
    "torch": _each(Software, lambda fact: fact.torch_version or fact.torch_problem),
    "CUDA of torch": _each(Software, _cuda),
    "NCCL": _each(Software, lambda fact: fact.nccl_loaded or fact.nccl_problem),
    "driver": _each(Software, lambda fact: fact.driver or fact.driver_problem),
    "GPUs": _each(GpusFact, _gpus),
    "Python": _each(Software, lambda fact: f"{fact.python}, {fact.machine}"),
    "kernel": _each(
        Host, lambda fact: fact.kernel and f"{fact.kernel}{', in a container' * fact.in_container}"
    ),
}
