"""DD316, DD317: GPUs that the NVSwitch fabric has not taken in, or whose fabric is ill."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge.gpu import nvml
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import Hits, hits_of
from ddp_doctor.views.kernel_log import switch_faults
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.gpus import Sight, asked_for, gpu_draft
from ddp_doctor.wording.nodes import by_cause, of_nodes

FABRIC_MANAGER = by_operator(
    "Start the fabric manager of exactly the driver's version, and read in its log why it has not taken the "
    "GPU in; where the node has just booted, wait a minute.",
    "systemctl status nvidia-fabricmanager",
    "nv-fabricmanager --version; cat /proc/driver/nvidia/version",
    "tail -n 50 /var/log/fabricmanager.log",
    "nvidia-smi -q | grep -A 3 Fabric",
    cost="needs root; restarting the fabric manager ends running jobs",
    undo=NOTHING_TO_UNDO,
    references=(nvml.FABRIC_GUIDE,),
)


_802 = "Until then CUDA answers with error 802, system not yet initialized, and no rank starts."


@dataclass(frozen=True)
class _State:
    """What keeps GPUs out of the fabric; GPUs alike in it are one finding."""

    words: str
    severity: Severity
    manager: bool | None  # whether the fabric manager's process runs
    driver: str | None


@rule("DD316", "nvlink-fabric-not-ready", Severity.ERROR, GpusFact)
def fabric_not_ready(recording: Recording) -> Iterator[Draft]:
    """A GPU behind NVSwitches that the fabric manager has not taken in.

    What it finds
        A fabric state other than completed, or completed with an error (Hopper and newer): an error; a warning
        where the registration has not started and no NVSwitch is seen. Older GPUs tell nothing: NVSwitches
        without a running fabric manager are a warning then, and information where the registration is done.
        Machines without NVSwitch, and GPUs in MIG mode, are silent.

    Why it matters
        CUDA fails at the first call with error 802, "system not yet initialized", while nvidia-smi looks well.

    Remedy
        Start the fabric manager; its version must be exactly the driver's.

    References
        NVIDIA Fabric Manager User Guide; NVML API reference, nvmlGpuFabricInfo_v2_t; CUDA Runtime API,
        cudaErrorSystemNotReady
    """
    for state, hits in _waiting(recording).items():
        yield gpu_draft(
            recording,
            hits,
            state.words,
            lambda gpu: Sight(_seen(gpu), expected_from="state completed, without error"),
            FABRIC_MANAGER,
            detail=f"{_802} {_manager_words(state.manager, state.driver)}",
            severity=state.severity,
            confidence=Confidence.LIKELY if state.severity is Severity.ERROR else Confidence.POSSIBLE,
        )
    yield from _no_manager(recording)


def _waiting(recording: Recording) -> dict[_State, Hits]:
    groups: dict[_State, list[tuple[int, Gpu]]] = {}
    for seen in recording.facts(GpusFact):
        for gpu in seen.fact.of_the_job():
            words = _state_words(gpu)
            if words:
                mild = gpu.fabric_state == "not_started" and not _has_switches(seen.fact)
                severity = Severity.WARNING if mild else Severity.ERROR
                state = _State(words, severity, seen.fact.fabric_manager, seen.fact.driver_version)
                groups.setdefault(state, []).append((seen.node, gpu))
    return dict(groups)


def _state_words(gpu: Gpu) -> str | None:
    if gpu.mig_enabled:
        return None  # slices do not use the fabric
    if gpu.fabric_state == "completed":
        return f"the NVLink fabric refused it ({gpu.fabric_status})" if gpu.fabric_status else None
    waits_for = nvml.FABRIC_STATES.get(gpu.fabric_state or "")
    return f"the NVLink fabric is not ready, {waits_for}" if waits_for else None


def _seen(gpu: Gpu) -> str:
    status = f", status {gpu.fabric_status}" if gpu.fabric_status else ""
    return f"fabric state {(gpu.fabric_state or '').replace('_', ' ')}{status}"


def _manager_words(manager: bool | None, driver: str | None) -> str:
    if manager is None:
        return "Whether the fabric manager runs cannot be seen from here."
    if manager:
        return f"The fabric manager runs; its version must be that of the driver, {driver or 'which is not told'}."
    return "The fabric manager does not run on the node."


def _has_switches(fact: GpusFact) -> bool:
    return any(name.startswith("nvidia-nvswitch") for name in fact.device_nodes)


def _no_manager(recording: Recording) -> Iterator[Draft]:
    """Nodes with NVSwitches and no fabric manager, whose GPUs are not named above."""
    for severity, group in by_cause(recording.facts(GpusFact), _unmanaged).items():
        done = severity is Severity.INFO
        yield likely(
            of_nodes(recording, group),
            "No fabric manager runs on {who}, which has NVSwitches",
            Evidence(
                text="/dev/nvidia-nvswitchctl is there, and no process nv-fabricmanager",
                expected_from=nvml.FABRIC_GUIDE,
            ),
            FABRIC_MANAGER,
            detail="The GPUs are registered, but faults of the NVSwitches now go unseen." if done else _802,
            severity=asked_for(recording, severity),
        )


def _unmanaged(fact: GpusFact) -> Severity | None:
    gpus = [gpu for gpu in fact.of_the_job() if not gpu.mig_enabled]
    if fact.fabric_manager is not False or not gpus or any(_state_words(gpu) for gpu in gpus):
        return None
    return Severity.INFO if all(gpu.fabric_state == "completed" for gpu in gpus) else Severity.WARNING


@rule("DD317", "nvlink-fabric-unhealthy", Severity.WARNING, GpusFact)
def fabric_unhealthy(recording: Recording) -> Iterator[Draft]:
    """A GPU of which the fabric itself says that something is wrong.

    What it finds
        Bits of the fabric health mask: degraded bandwidth, unhealthy or recovering routes, too few NVLinks,
        firmware or partition that does not fit. Silent where the kernel log has the NVSwitch's fault (DD333).

    Why it matters
        NCCL runs over the slowest link of a ring: one such GPU slows all down, or its peers cannot reach it.

    Remedy
        Look at the NVLinks and the fabric manager's log; reset the GPUs of the node together.

    References
        NVML API reference, nvmlGpuFabricInfo_v2_t, healthMask
    """
    explained = {hit.view.node for hit in switch_faults(recording)}
    ill = hits_of(recording, lambda gpu: gpu.fabric_faults and not gpu.mig_enabled and not _state_words(gpu))
    hits = [(node, gpu) for node, gpu in ill if node not in explained]
    if hits:
        yield gpu_draft(
            recording,
            hits,
            f"the NVLink fabric is not well: {' and '.join(dict.fromkeys(_fault_words(gpu) for _, gpu in hits))}",
            lambda gpu: Sight(f"fabric health: {_fault_words(gpu)}", expected_from=nvml.FABRIC_API),
            FABRIC_MANAGER,
            detail="As the driver reports it; nothing was measured.",
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
        )


def _fault_words(gpu: Gpu) -> str:
    return ", ".join(nvml.FABRIC_FAULTS.get(name, name) for name in gpu.fabric_faults)
