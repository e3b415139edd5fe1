"""How grave a fault is, of a node's GPUs altogether and of single GPUs, and which GPUs are peers."""

from collections.abc import Callable

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.views.gpus import Hits, gpus_of_the_job
from ddp_doctor.wording.gpus import asked_for


def severity_of_use(recording: Recording, group: list[FactAt[GpusFact]]) -> Severity:
    """An error where the job wants GPUs; where CUDA_VISIBLE_DEVICES hides them on purpose, information."""
    return Severity.INFO if all(one.fact.hidden for one in group) else asked_for(recording, Severity.ERROR)


def by_severity(recording: Recording, judge: Callable[[Gpu], Severity | None]) -> dict[Severity, Hits]:
    """The job's GPUs that ``judge`` finds fault with, the worst first."""
    judged = [(judge(gpu), (node, gpu)) for node, gpu in gpus_of_the_job(recording)]
    found = {severity: [hit for verdict, hit in judged if verdict is severity] for severity in Severity}
    return {severity: hits for severity, hits in found.items() if hits}
