"""DD301, DD302, DD316, DD317, DD322: a driver that does not serve its GPUs, an NVSwitch fabric not ready or faulty."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ddp_doctor.checks.node.gpus.condition import severity_of_use
from ddp_doctor.facts.collectives import AllReduceFact
from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge.gpu import nvml
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse import software
from ddp_doctor.remedies.hardware import REBOOT
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import hits_of
from ddp_doctor.views.kernel_log import switch_faults
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, finding, likely, possible, proved
from ddp_doctor.wording.gpus import asked_for, gpu_draft
from ddp_doctor.wording.kernel_log import stuck_processes, xid_lines
from ddp_doctor.wording.nodes import by_cause, node_culprits, node_names, of_nodes


@rule("DD301", "nvidia-driver-not-working", Consequence.FAILS, GpusFact)
def nvidia_driver_not_working(recording: Recording) -> Iterator[Draft]:
    """The NVIDIA driver does not serve GPUs that exist or were granted.

    Finds: NVIDIA display devices on the PCI bus (other than virtual machines' devices), or GPUs granted by the
        scheduler, while NVML fails: no library, no kernel module, or mismatched versions. In a container, only
        granted GPUs count.
    Why: torch.cuda.is_available() is False: the job fails, or silently runs on the CPU.
    Remedy: Follow the finding, because the fix depends on NVML's answer; after a driver update, usually reboot.
    See: NVML API reference, nvmlInit_v2 and nvmlReturn_t
    """
    for code, group in by_cause(recording.facts(GpusFact), _failure).items():
        fact = group[0].fact
        fault = nvml.fault_of(code, in_container=fact.in_container)
        expected = fact.gpus_expected()
        drivers = ", ".join(sorted({gpu.driver or "none" for gpu in expected}))
        bus = f"{len(expected)} on the PCI bus (kernel driver: {drivers})" if expected else ""
        granted = f"{fact.granted} granted by the scheduler or container runtime" if fact.has_grant() else ""
        yield proved(
            of_nodes(recording, group),
            f"GPUs of {{who}} are unusable: {fault.meaning}",
            (
                *tuple(dict.fromkeys(_nvml_evidence(node.fact) for node in group))[:LINES_OF_EVIDENCE],
                *_gpu_log_evidence(recording, group),
            ),
            by_operator(fault.repair, *fault.commands, scope=fault.scope, references=(nvml.NVML_API,)),
            detail=f"NVIDIA GPUs: {', '.join(part for part in (bus, granted) if part) or 'none counted'}.",
            severity=severity_of_use(recording, group),
        )


def _gpu_log_evidence(recording: Recording, group: list[FactAt[GpusFact]]) -> tuple[Evidence, ...]:
    nodes = {node.node for node in group}
    return xid_lines(recording, lambda view, device: view.node in nodes and view.concerns(device))


def _failure(fact: GpusFact) -> str | None:
    return None if fact.nvml_error is None or fact.driver_hangs else fact.nvml_error.code


def _nvml_evidence(fact: GpusFact) -> Evidence:
    error = fact.nvml_error
    assert error is not None
    module = f"; loaded: {fact.kernel_module}" if fact.kernel_module else ""
    text = f"{error.call or 'the program that asks NVML'}: {error.code}, {error.text}{module}"
    return Evidence(text=text, expected_from="NVML answers on every node with a working driver")


@rule("DD302", "nvidia-driver-hangs", Consequence.HANGS, GpusFact)
def nvidia_driver_hangs(recording: Recording) -> Iterator[Draft]:
    """The NVIDIA driver does not answer at all.

    Finds: A call into NVML that did not return after 10 s plus 5 s per GPU on the bus. This leaves time for a
        driver without persistence mode, which must start every GPU first.
    Why: Every process of the job that uses CUDA will hang in the same way, often unkillable.
    Remedy: Check for Xids and processes in state D, then reboot the node.
    See: NVIDIA Xid catalog (79, 119, 120); NVIDIA Driver Persistence
    """
    hung = by_cause(recording.facts(GpusFact), lambda fact: fact.nvml_error if fact.driver_hangs else None)
    for error, group in hung.items():
        call = error.call if error.gpu is None else f"{error.call} of GPU {error.gpu}"
        nodes = node_culprits(recording, group)
        yield likely(
            (node.model_copy(update={"gpu": error.gpu}) for node in nodes),
            f"NVIDIA driver hangs on {node_names(recording, group)}: no answer to {call}",
            (
                Evidence(
                    text=f"{call}: no answer",
                    value=group[0].fact.nvml_elapsed_s,
                    unit="s",
                    expected_from="one second, or a few seconds per GPU without persistence mode",
                ),
                *_gpu_log_evidence(recording, group),
                *stuck_processes(recording, {node.node for node in group}),
            ),
            REBOOT,
            detail="An NVML call never returned, and ddp-doctor killed the process that made it.",
            severity=severity_of_use(recording, group),
        )


@rule("DD322", "driver-library-differs-from-module", Consequence.RISK, GpusFact)
def driver_library_differs_from_module(recording: Recording) -> Iterator[Draft]:
    """The NVIDIA library and the loaded kernel module have different versions, but NVML answers.

    Finds: Reports a version of libnvidia-ml that differs from /proc/driver/nvidia/version. If NVML refuses to work
        because of it, nvidia-driver-not-working reports it. WSL has no such file because its driver belongs to
        Windows. The run is unsure unless ranks have passed over NCCL.
    Why: An update was not completed, or a second copy of the driver's libraries is found first; CUDA may fail even
        if NVML works.
    Remedy: Install the library and the module in the same version; after an update, reboot.
    See: NVML API reference, nvmlSystemGetNVMLVersion and nvmlSystemGetDriverVersion
    """
    for (library, module), group in by_cause(recording.facts(GpusFact), _two_versions).items():
        yield possible(
            of_nodes(recording, group),
            f"NVIDIA driver on {{who}} has mismatched versions: library {library}, kernel module {module}",
            Evidence(
                text=f"libnvidia-ml.so.1 of {library}; loaded: {group[0].fact.kernel_module}",
                expected_from="both from one installation",
            ),
            by_operator(
                "Install library and kernel module in one version: reload the module or"
                " reboot after an update, and remove other copies of the libraries",
                "cat /proc/driver/nvidia/version",
                "ldconfig -p | grep -e libcuda -e libnvidia-ml",
                cost="ends all GPU jobs of the node",
                references=(nvml.NVML_API,),
            ),
            detail="NVML and nvidia-smi still work, but CUDA may fail.",
            severity=asked_for(recording, _if_cuda_may_fail(recording)),
        )


def _if_cuda_may_fail(recording: Recording) -> Severity:
    """Return the severity of a fault that may keep CUDA from starting; if ranks passed over NCCL, it did not."""
    has_started = recording.on_nccl and recording.first(AllReduceFact) is not None
    return Severity.WARNING if has_started else Severity.ERROR


def _two_versions(fact: GpusFact) -> tuple[str, str] | None:
    module = software.driver_version(fact.kernel_module or "")
    library = (fact.nvml_version or "").partition(".")[2]  # without CUDA's major version before it
    return (library, module) if module and library and library != module else None


FABRIC_MANAGER = by_operator(
    "Start the fabric manager in exactly the driver's version; its log shows why it did not"
    " register the GPU (wait a minute after a boot)",
    "systemctl status nvidia-fabricmanager",
    "nv-fabricmanager --version; cat /proc/driver/nvidia/version",
    "tail -n 50 /var/log/fabricmanager.log",
    "nvidia-smi -q | grep -A 3 Fabric",
    cost="root access; restarting the fabric manager ends running jobs",
    references=(nvml.FABRIC_GUIDE,),
)


_802 = "Until then, CUDA fails with error 802 (system not yet initialized) and no rank starts."


#: By whether the fabric manager's process runs.
_MANAGER = {
    None: "It is unknown whether the fabric manager runs.",
    True: "The fabric manager runs. Its version must match the driver, {driver}.",
    False: "The fabric manager does not run on the node.",
}


@dataclass(frozen=True)
class _State:
    """The reason that keeps GPUs out of the fabric; GPUs with the same reason share a finding."""

    words: str
    is_certain: bool
    manager: bool | None  # whether the fabric manager's process runs
    driver: str | None


@rule("DD316", "nvlink-fabric-not-ready", Consequence.FAILS, GpusFact)
def nvlink_fabric_not_ready(recording: Recording) -> Iterator[Draft]:
    """The fabric manager has not registered a GPU behind NVSwitches.

    Finds: A fabric state other than completed, or completed with an error (Hopper and newer): an error, only
        possible if the registration has not started and no NVSwitch is seen. Older GPUs report no state: NVSwitches
        without a running fabric manager are a possible error then, and information if the registration is done. A
        possible error is a warning if ranks have passed over NCCL. Machines without NVSwitch and GPUs in MIG mode
        are skipped.
    Why: CUDA fails at the first call with error 802, "system not yet initialized", while nvidia-smi shows no
        problem.
    Remedy: Start the fabric manager; its version must be exactly the driver's.
    See: NVIDIA Fabric Manager User Guide; NVML API reference, nvmlGpuFabricInfo_v2_t; CUDA Runtime API,
        cudaErrorSystemNotReady
    """
    for state, hits in grouped(_waiting(recording)).items():
        yield gpu_draft(
            recording,
            hits,
            state.words,
            _fabric_evidence,
            FABRIC_MANAGER,
            detail=f"{_802} {_MANAGER[state.manager].format(driver=state.driver or 'which is unknown')}",
            severity=Severity.ERROR if state.is_certain else _if_cuda_may_fail(recording),
            confidence=Confidence.LIKELY if state.is_certain else Confidence.POSSIBLE,
        )
    for registered, group in by_cause(recording.facts(GpusFact), _unmanaged).items():
        done = registered == "registered"
        yield finding(
            of_nodes(recording, group),
            "Fabric manager does not run on {who}, which has NVSwitches",
            Evidence(
                text="/dev/nvidia-nvswitchctl exists, but no process nv-fabricmanager", expected_from=nvml.FABRIC_GUIDE
            ),
            FABRIC_MANAGER,
            confidence=Confidence.LIKELY if done else Confidence.POSSIBLE,
            detail="The GPUs are registered, but NVSwitch faults go unnoticed." if done else _802,
            severity=asked_for(recording, Severity.INFO if done else _if_cuda_may_fail(recording)),
        )


def _waiting(recording: Recording) -> Iterator[tuple[_State, tuple[int, Gpu]]]:
    for node in recording.facts(GpusFact):
        switches = any(name.startswith("nvidia-nvswitch") for name in node.fact.device_nodes)
        for gpu in node.fact.of_the_job():
            words = _state_words(gpu)
            if words:
                is_certain = switches or gpu.fabric_state != "not_started"
                state = _State(words, is_certain, node.fact.fabric_manager, node.fact.driver_version)
                yield state, (node.node, gpu)


def _state_words(gpu: Gpu) -> str | None:
    if gpu.mig_enabled:
        return None  # slices do not use the fabric
    if gpu.fabric_state == "completed":
        return f"the NVLink fabric rejected it ({gpu.fabric_status})" if gpu.fabric_status else None
    waits_for = nvml.FABRIC_STATES.get(gpu.fabric_state or "")
    return f"the NVLink fabric is not ready ({waits_for})" if waits_for else None


def _fabric_evidence(gpu: Gpu) -> Evidence:
    status = f", status {gpu.fabric_status}" if gpu.fabric_status else ""
    state = (gpu.fabric_state or "").replace("_", " ")
    return Evidence(text=f"fabric state {state}{status}", expected_from="state completed, without error")


def _unmanaged(fact: GpusFact) -> Literal["registered", "unknown"] | None:
    gpus = [gpu for gpu in fact.of_the_job() if not gpu.mig_enabled]
    if fact.fabric_manager is not False or not gpus or any(_state_words(gpu) for gpu in gpus):
        return None
    return "registered" if all(gpu.fabric_state == "completed" for gpu in gpus) else "unknown"


@rule("DD317", "nvlink-fabric-unhealthy", Consequence.COST, GpusFact)
def nvlink_fabric_unhealthy(recording: Recording) -> Iterator[Draft]:
    """The NVLink fabric reports a problem with a GPU.

    Finds: Bits of the fabric health mask: degraded bandwidth, unhealthy or recovering routes, too few NVLinks,
        mismatched firmware or partition. Not reported if the kernel log has the NVSwitch's fault (DD333).
    Why: NCCL runs at the speed of the slowest link of a ring: one such GPU slows all GPUs, or its peers cannot
        reach it.
    Remedy: Check the NVLinks and the fabric manager's log; reset the GPUs of the node together.
    See: NVML API reference, nvmlGpuFabricInfo_v2_t, healthMask
    """
    explained = {fault.view.node for fault in switch_faults(recording)}
    ill = hits_of(recording, lambda gpu: gpu.fabric_faults and not gpu.mig_enabled and not _state_words(gpu))
    hits = [(node, gpu) for node, gpu in ill if node not in explained]
    if hits:
        yield gpu_draft(
            recording,
            hits,
            f"the NVLink fabric is unhealthy ({' and '.join(dict.fromkeys(_fault_words(gpu) for _, gpu in hits))})",
            lambda gpu: Evidence(text=f"fabric health: {_fault_words(gpu)}", expected_from=nvml.FABRIC_API),
            FABRIC_MANAGER.model_copy(
                update={
                    "summary": (
                        "Find NVLinks that are down; the fabric manager's log shows the reason,"
                        " and its version must match the driver exactly"
                    )
                }
            ),
            detail="The driver reports it; nothing was measured.",
            confidence=Confidence.LIKELY,
        )


def _fault_words(gpu: Gpu) -> str:
    return ", ".join(nvml.FABRIC_FAULTS.get(name, name) for name in gpu.fabric_faults)
