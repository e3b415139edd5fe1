"""DD301, DD302, DD322: GPUs are there, and their driver does not serve them, or is of two versions."""

from collections.abc import Iterator

from ddp_doctor.checks.node.gpus.severity import severity_of_use
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.knowledge.gpu import nvml
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse import software
from ddp_doctor.remedies.gpus import REBOOT
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.wording.findings import likely, proved
from ddp_doctor.wording.gpus import LINES_OF_EVIDENCE, asked_for
from ddp_doctor.wording.kernel_log import stuck_processes, xid_lines
from ddp_doctor.wording.nodes import by_cause, node_culprits, node_names, of_nodes

ONE_DRIVER = by_operator(
    "Make library and kernel module one installation: reload the module or reboot after an update, and remove "
    "copies of the libraries from other places.",
    "cat /proc/driver/nvidia/version",
    "ldconfig -p | grep -e libcuda -e libnvidia-ml",
    cost="ends all GPU jobs of the node",
    undo=NOTHING_TO_UNDO,
    references=(nvml.NVML_API,),
)


@rule("DD301", "nvidia-driver-not-working", Severity.ERROR, GpusFact)
def driver_not_working(recording: Recording) -> Iterator[Draft]:
    """GPUs are there, or were granted, and the NVIDIA driver does not serve them.

    What it finds
        NVIDIA display devices on the PCI bus (other than those of virtual machines), or GPUs granted by the
        scheduler, while NVML fails: no library, no kernel module, versions that do not fit. In a container
        only granted GPUs count.

    Why it matters
        torch.cuda.is_available() is False: the job fails, or runs on the CPU without a word.

    Remedy
        Named with the finding, since it depends on NVML's answer; after a driver update mostly a reboot.

    References
        NVML API reference, nvmlInit_v2 and nvmlReturn_t
    """
    for code, group in by_cause(recording.facts(GpusFact), _failure).items():
        fault = nvml.fault_of(code, in_container=group[0].fact.in_container)
        mend = by_operator(fault.mend, *fault.commands, scope=fault.scope, references=(nvml.NVML_API,))
        yield proved(
            of_nodes(recording, group),
            f"The GPUs of {{who}} cannot be used: {fault.meaning}",
            (
                *tuple(dict.fromkeys(_nvml_evidence(one.fact) for one in group))[:LINES_OF_EVIDENCE],
                *_log(recording, group),
            ),
            mend,
            detail=_gpus_expected(group[0].fact),
            severity=severity_of_use(recording, group),
        )


def _log(recording: Recording, group: list[FactAt[GpusFact]]) -> tuple[Evidence, ...]:
    """What the kernel log has of GPUs on these nodes."""
    nodes = {one.node for one in group}
    return xid_lines(recording, lambda view, device: view.node in nodes and view.concerns(device))


def _failure(fact: GpusFact) -> str | None:
    return fact.nvml_error.code if fact.nvml_error and fact.nvml_error.code != "timed_out" else None


def _gpus_expected(fact: GpusFact) -> str:
    """What there is, although NVML does not say so."""
    drivers = sorted({gpu.driver or "none" for gpu in fact.due()})
    bus = f"{len(fact.due())} on the PCI bus (kernel driver: {', '.join(drivers)})" if fact.due() else ""
    granted = f"{fact.granted} granted by the scheduler or container runtime" if fact.is_owed() else ""
    return f"NVIDIA GPUs: {', '.join(part for part in (bus, granted) if part) or 'none counted'}."


def _nvml_evidence(fact: GpusFact) -> Evidence:
    error = fact.nvml_error
    assert error is not None
    module = f"; loaded: {fact.kernel_module}" if fact.kernel_module else ""
    text = f"{error.call or 'the program that asks NVML'}: {error.code}, {error.text}{module}"
    return Evidence(text=text, expected_from="NVML answers wherever the driver works")


@rule("DD302", "nvidia-driver-hangs", Severity.ERROR, GpusFact)
def driver_hangs(recording: Recording) -> Iterator[Draft]:
    """The NVIDIA driver does not answer at all.

    What it finds
        A call into NVML that had not come back after 10 s and 5 s more per GPU on the bus, which leaves room
        for a driver without persistence mode that has to start every GPU first.

    Why it matters
        Every process of the job that touches CUDA will hang in the same way, often unkillable.

    Remedy
        Look for Xids and processes in state D, then reboot the node.

    References
        NVIDIA Xid catalog (79, 119, 120); NVIDIA Driver Persistence
    """
    hung = by_cause(recording.facts(GpusFact), lambda fact: fact.nvml_error if not _failure(fact) else None)
    for error, group in hung.items():
        call = error.call if error.gpu is None else f"{error.call} of GPU {error.gpu}"
        nodes = node_culprits(recording, group)
        waited = group[0].fact.nvml_elapsed_s
        yield likely(
            (node.model_copy(update={"gpu": error.gpu}) for node in nodes),
            f"The NVIDIA driver hangs on {node_names(recording, group)}: no answer to {call}",
            (
                Evidence(
                    text=f"{call} without an answer",
                    value=waited,
                    unit="s",
                    expected_from="NVML answers in a second, without persistence mode in some seconds per GPU",
                ),
                *_log(recording, group),
                *stuck_processes(recording, {one.node for one in group}),
            ),
            REBOOT,
            detail="A call of NVML never came back; the program that made it was killed.",
            severity=severity_of_use(recording, group),
        )


@rule("DD322", "driver-library-differs-from-module", Severity.WARNING, GpusFact)
def library_differs(recording: Recording) -> Iterator[Draft]:
    """The NVIDIA library and the loaded kernel module are of different versions, and yet NVML answers.

    What it finds
        The version of libnvidia-ml against the one in /proc/driver/nvidia/version. Where NVML refuses to work for
        it, nvidia-driver-not-working says so. WSL has no such file: its driver is that of Windows.

    Why it matters
        An update was half done, or a second copy of the driver's libraries is in the way; CUDA may fail where
        NVML does not.

    Remedy
        Make library and module one installation; after an update reboot.

    References
        NVML API reference, nvmlSystemGetNVMLVersion and nvmlSystemGetDriverVersion
    """
    for (library, module), group in by_cause(recording.facts(GpusFact), _two_versions).items():
        yield likely(
            of_nodes(recording, group),
            f"The NVIDIA library on {{who}} is version {library}, the module {module}",
            Evidence(
                text=f"libnvidia-ml.so.1 of {library}; loaded: {group[0].fact.kernel_module}",
                expected_from="both come from one installation",
            ),
            ONE_DRIVER,
            detail="NVML answers all the same; CUDA is more particular.",
            severity=asked_for(recording, Severity.WARNING),
        )


def _two_versions(fact: GpusFact) -> tuple[str, str] | None:
    module = software.driver_version(fact.kernel_module or "")
    library = (fact.nvml_version or "").partition(".")[2]  # without CUDA's major version before it
    return (library, module) if module and library and library != module else None
