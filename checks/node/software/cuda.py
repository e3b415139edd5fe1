"""DD203, DD204: a torch that does not go with the GPUs or their driver."""

from collections.abc import Iterator

from ddp_doctor.checks.node.software import wording
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge import versions
from ddp_doctor.knowledge.versions import dotted, release
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.software import with_gpus
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import by_cause, of_nodes


@rule("DD203", "cpu-torch-beside-gpus", Severity.ERROR, Software)
def cpu_torch_beside_gpus(recording: Recording) -> Iterator[Draft]:
    """A CPU build of torch on a machine with NVIDIA GPUs.

    What it finds
        torch was built without CUDA (and without ROCm) while the NVIDIA driver is loaded and GPU devices are
        there, not hidden from the job, and gloo was not asked for.

    Why it matters
        The job runs on the CPU, tens of times slower, or dies at its first call to CUDA.

    Remedy
        Install a CUDA build that the driver supports. Where training on the CPU is meant, say so with
        --backend gloo or CUDA_VISIBLE_DEVICES="".

    References
        https://pytorch.org/get-started/locally
    """
    for (version, driver, gpus), group in by_cause(with_gpus(recording), _cpu_build).items():
        title = f"torch {version} on {{who}} is a CPU build, so the GPUs stay idle"
        saw = Evidence(
            text=f"torch/version.py names no CUDA, beside {gpus} GPU devices",
            expected_from=f"driver {driver}",
        )
        detail = 'Where the CPU is meant, use --backend gloo or CUDA_VISIBLE_DEVICES="".'
        yield proved(of_nodes(recording, group), title, saw, wording.cuda_build(driver), detail=detail)


def _cpu_build(fact: Software) -> tuple[str, str, int] | None:
    if fact.torch_version is None or fact.driver is None or fact.torch_cuda or fact.torch_hip:
        return None
    return fact.torch_version, fact.driver, fact.gpu_devices


@rule("DD204", "driver-too-old-for-cuda", Severity.ERROR, Software)
def driver_too_old_for_cuda(recording: Recording) -> Iterator[Draft]:
    """An NVIDIA driver older than torch's CUDA needs.

    What it finds
        A loaded driver below the minimum of the CUDA major version that torch was built with. Information
        only where a forward-compatibility libcuda is installed, with which data-centre GPUs work.

    Why it matters
        torch.cuda.is_available() is False, or CUDA says that the driver version is insufficient.

    Remedy
        Upgrade the driver on the node, or install a torch built with an older CUDA.

    References
        https://docs.nvidia.com/deploy/cuda-compatibility
    """
    for (driver, cuda, bridge), group in by_cause(with_gpus(recording), _driver_gap).items():
        least = dotted(versions.least_driver(cuda))
        title = f"Driver {driver} on {{who}} is too old for torch's CUDA {cuda}, which needs {least}"
        detail = f"{bridge} bridges this on data-centre GPUs." if bridge else "No rank gets its GPU."
        remedies = wording.driver_upgrade(f"Upgrade it to {least} or newer"), wording.cuda_build(driver)
        saw, severity = (
            Evidence(text=f"driver {driver}", expected_from=versions.DRIVER_SOURCE),
            Severity.INFO if bridge else None,
        )
        yield proved(of_nodes(recording, group), title, saw, *remedies, detail=detail, severity=severity)


def _driver_gap(fact: Software) -> tuple[str, str, str | None] | None:
    driver, cuda = fact.driver, fact.torch_cuda
    if driver is None or cuda is None or release(driver) >= versions.least_driver(cuda):
        return None
    return driver, cuda, fact.forward_compatibility
