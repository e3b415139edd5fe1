"""GPUs: what the driver's management library (NVML) says of each, beside what the machine should have.

DDP needs one whole, healthy, free GPU a rank: one that is lost, hot, in use or absent stops the job in its
first minute, or slows every rank down to itself. Raw input, from sources/child_nvml.py (a process of its
own, since a sick driver hangs whoever asks it), and what it is held against (parse/host_gpus.py):

    {"error": null, "driver_version": "550.90.07", "gpus": [{"index": 3, "uuid": "GPU-8932f933-…",
     "bus_id": "00000000:61:00.0", "ecc_volatile_uncorrected": 2, "memory_used_bytes": 4194304, …}]}
    /sys/bus/pci/devices/0000:61:00.0/{vendor: 0x10de, class: 0x030200, driver -> …/nvidia}
    SLURM_JOB_GPUS=0,1,2,3   NVIDIA_VISIBLE_DEVICES=GPU-8932f933-…   CUDA_VISIBLE_DEVICES=0,1

A container sees the host's PCI bus without owning its GPUs, so there only granted GPUs count. The rules
about single GPUs (memory, ECC, clocks, modes, models) are in knowledge/health.py.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from ddp_doctor.checks.gpus import health
from ddp_doctor.knowledge import nvml as known
from ddp_doctor.knowledge import thresholds as limits
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Severity, Status, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent, Failed, TookTooLong
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy, Setting
from ddp_doctor.model.recording import Recording, Seen
from ddp_doctor.model.rule import rule
from ddp_doctor.parse import host_gpus
from ddp_doctor.parse import visible_devices as devices
from ddp_doctor.parse.gpu_facts import GpusFact
from ddp_doctor.parse.nvml import NvmlAnswer, parse_nvml
from ddp_doctor.phrases.gpus import LINES_OF_EVIDENCE, asked_for
from ddp_doctor.phrases.nodes import by_cause, node_culprits, node_names

__all__ = ["CHECK", "GpusFact", "probe"]

REQUIRED = "--require-gpus"


def probe(ctx: Context) -> GpusFact:
    """Ask NVML in a process of its own. Raises Absent only where no GPU is due or granted either."""
    pci = host_gpus.pci_gpus(ctx)
    answer = _ask(ctx, limits.NVML_BASE_LIMIT_S + limits.NVML_LIMIT_PER_GPU_S * len(pci or ()))
    seen = GpusFact(
        gpus=answer.gpus,
        driver_version=answer.driver_version,
        cuda_driver_version=answer.cuda_driver_version,
        nvml_error=answer.failure(),
        nvml_elapsed_s=answer.elapsed_s,
        kernel_module=host_gpus.first_line(ctx, "/proc/driver/nvidia/version"),
        pci_gpus=pci,
        excluded_bus_ids=answer.excluded_bus_ids,
        device_nodes=host_gpus.device_nodes(ctx),
        in_container=host_gpus.in_container(ctx),
    )
    fact = seen.model_copy(update=devices.job_view(seen.gpus, ctx.env, in_container=seen.in_container))
    if not (fact.gpus or answer.error == "timed_out" or fact.due() or fact.is_owed()):
        raise Absent(_absence(fact))
    return fact


def _ask(ctx: Context, limit_s: float) -> NvmlAnswer:
    """The child's answer, also where the driver kills or hangs it. Raises where it never got to NVML."""
    result = ctx.child("nvml", f"{max(min(limit_s, ctx.deadline - ctx.clock() - 1.0), 0.1):.1f}")
    ctx.keep(result.stdout or result.stderr)
    try:
        answer = parse_nvml(result.stdout)
    except ValueError:
        if result.returncode is not None and result.returncode < 0:
            return NvmlAnswer(error="crashed", text=f"ended by signal {-result.returncode}")
        if result.status == "timed_out":
            raise TookTooLong("the program that asks NVML did not end in time, and said nothing") from None
        last = result.stderr.strip().rpartition("\n")[2]
        raise Failed(f"the program that asks NVML gave no answer: {last or result.status}") from None
    if answer.error == "pynvml_missing":
        raise Failed(f"nvidia-ml-py is missing in the doctor's own Python: {answer.text}")
    if answer.error == "timed_out" and not answer.call:
        raise TookTooLong("the program that asks NVML had not reached the driver in time")
    return answer


def _absence(fact: GpusFact) -> str:
    if fact.pci_gpus and all(gpu.passed_through for gpu in fact.pci_gpus):
        return f"all {len(fact.pci_gpus)} NVIDIA GPUs are set aside for virtual machines (vfio-pci)"
    if fact.pci_gpus:
        here = "container" if fact.in_container else "SLURM step"
        return f"no NVIDIA GPU was given to this {here}; the machine has {len(fact.pci_gpus)}"
    bus = "the PCI bus cannot be read" if fact.pci_gpus is None else "no PCI device of vendor 10de"
    driver = "no driver" if fact.nvml_error else "the driver lists none"
    return f"no NVIDIA GPU on this machine: {bus}, {driver}"


def _severity(recording: Recording, group: list[Seen[GpusFact]]) -> Severity:
    """An error where the job wants GPUs; where CUDA_VISIBLE_DEVICES hides them on purpose, information."""
    return Severity.INFO if all(one.fact.hidden for one in group) else asked_for(recording, Severity.ERROR)


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
        fault = known.fault_of(code, in_container=group[0].fact.in_container)
        mend = known.remedy(fault.mend, *fault.commands, scope=fault.scope, references=(known.NVML_API,))
        yield Draft(
            title=f"The GPUs of {node_names(recording, group)} cannot be used: {fault.meaning}",
            detail=_gpus_expected(group[0].fact),
            confidence=Confidence.PROVED,
            culprits=node_culprits(recording, group),
            evidence=tuple(dict.fromkeys(_nvml_evidence(one.fact) for one in group))[:LINES_OF_EVIDENCE],
            remedies=(mend,),
            severity=_severity(recording, group),
        )


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
    return Evidence(check="gpus", text=text, expected_from="NVML answers wherever the driver works")


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
        yield Draft(
            title=f"The NVIDIA driver hangs on {node_names(recording, group)}: no answer to {call}",
            detail="A call of NVML never came back; the program that made it was killed.",
            confidence=Confidence.LIKELY,
            culprits=tuple(node.model_copy(update={"gpu": error.gpu}) for node in nodes),
            evidence=(
                Evidence(
                    check="gpus",
                    text=f"{call} had not come back after {waited:.1f} s",
                    value=waited,
                    unit="s",
                    expected_from="NVML answers in a second, without persistence mode in a few seconds a GPU",
                ),
            ),
            remedies=(known.REBOOT,),
            severity=_severity(recording, group),
        )


@dataclass(frozen=True)
class _Shortfall:
    """Fewer GPUs than there should be, and who says how many."""

    have: int
    expected: int
    source: str
    named: tuple[str, ...] = ()  # bus ids of the missing ones, where known
    severity: Severity = Severity.ERROR


@rule("DD303", "gpus-missing", Severity.ERROR)
def gpus_missing(recording: Recording) -> Iterator[Draft]:
    """The driver shows fewer GPUs than there should be.

    What it finds
        GPUs bound to the driver on the PCI bus that NVML leaves out (not in containers and SLURM steps, which
        are shown their own only); fewer than the scheduler granted; fewer for the job than --require-gpus.
        A warning for a GPU without any kernel driver beside others that work.

    Why it matters
        Ranks without a GPU fail at start; a world smaller than planned trains something else.

    Remedy
        Look for the missing GPU in the kernel log; reboot, or take the node out.

    References
        NVIDIA Xid catalog, Xid 79; NVIDIA open-gpu-kernel-modules, "RmInitAdapter failed"
    """
    absent = [one for one in recording.of_check("gpus") if one.status is Status.ABSENT]
    seen = [*recording.facts(GpusFact), *(Seen(GpusFact(), one.node, None, one) for one in absent)]
    required = recording.options.require_gpus
    for short, group in by_cause(seen, lambda fact: _shortfall(fact, required)).items():
        missing = f"; missing: {', '.join(short.named)}" if short.named else ""
        yield Draft(
            title=f"{node_names(recording, group)}: {short.have} of {short.expected} GPUs{missing}",
            detail=f"{short.source} says {short.expected}; the job can count on {short.have}.",
            confidence=Confidence.PROVED,
            culprits=node_culprits(recording, group),
            evidence=(
                Evidence(
                    check="gpus",
                    text=f"{short.have} GPUs{missing}",
                    value=short.have,
                    unit="GPUs",
                    expected=short.expected,
                    expected_from=short.source,
                ),
            ),
            remedies=(_show_all(group[0].fact) if short.source == REQUIRED else known.FIND_GPU,),
            severity=_shortfall_severity(recording, short, group),
        )


def _shortfall_severity(recording: Recording, short: _Shortfall, group: list[Seen[GpusFact]]) -> Severity:
    """Who writes --require-gpus wants them, whatever else is set; else as grave as the job's use of GPUs."""
    wanted = Severity.ERROR if short.source == REQUIRED else _severity(recording, group)
    return short.severity if wanted.at_least(short.severity) else wanted


def _shortfall(fact: GpusFact, required: int | None) -> _Shortfall | None:
    """Where NVML fails as a whole, DD301 and DD302 say so."""
    if fact.nvml_error is not None:
        return None
    have = sum(gpu.error != "no_permission" for gpu in fact.gpus)
    unlisted = fact.unlisted()
    if unlisted:
        return _Shortfall(have, have + len(unlisted), "the PCI bus", unlisted)
    sliced = any(gpu.mig_enabled for gpu in fact.gpus)  # a grant then counts slices
    if fact.is_owed() and not sliced and have < (fact.granted or 0):
        return _Shortfall(have, fact.granted or 0, "the scheduler's grant")
    if required is not None and len(fact.visible) < required:
        return _Shortfall(len(fact.visible), required, REQUIRED)
    unbound = tuple(gpu.bus_id for gpu in fact.due() if gpu.driver is None)
    if unbound:
        return _Shortfall(have, have + len(unbound), "the PCI bus", unbound, Severity.WARNING)
    return None


def _show_all(fact: GpusFact) -> Remedy:
    """What gives the job more GPUs: CUDA_VISIBLE_DEVICES, where that is what keeps them away."""
    value = fact.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or len(fact.visible) >= len(fact.gpus):
        return known.remedy("Ask the scheduler for more GPUs, or take a machine that has them.", scope="job")
    why = f"it shows {len(fact.visible)} of {len(fact.gpus)} GPUs"
    unset = known.remedy(
        "Correct or unset CUDA_VISIBLE_DEVICES; leave it alone where the scheduler set it.",
        scope="job",
        cost="on a shared machine the other GPUs may be taken",
        undo=f"export CUDA_VISIBLE_DEVICES={shlex.quote(value)}",
        references=(known.CUDA_VARIABLES,),
    )
    return unset.model_copy(
        update={"settings": (Setting(name="CUDA_VISIBLE_DEVICES", action="unset", why=why),)}
    )


@rule("DD311", "job-sees-too-few-gpus", Severity.ERROR, GpusFact)
def too_few_visible(recording: Recording) -> Iterator[Draft]:
    """More ranks than GPUs they are shown, or a CUDA_VISIBLE_DEVICES that names a GPU which does not exist.

    What it finds
        With NCCL, more ranks on a node than a CUDA process is shown GPUs there: an error. An entry of
        CUDA_VISIBLE_DEVICES that names no GPU, or names one twice, while the ranks still fit: a warning.

    Why it matters
        Rank N uses GPU N: ranks beyond the last die with "invalid device ordinal", and NCCL refuses two ranks
        on one GPU. CUDA drops the first wrong entry and all after it without a word.

    Remedy
        Start as many ranks as GPUs are shown, or correct CUDA_VISIBLE_DEVICES.

    References
        CUDA Programming Guide, CUDA Environment Variables; NVIDIA/nccl init.cc, "Duplicate GPU detected"
    """
    for (ranks, shown, value, rejected), group in _selections(recording).items():
        short = ranks > shown
        count = f"{ranks} ranks, but {shown} GPUs are visible" if short else f"only {shown} GPUs are visible"
        setting = "" if value is None else f' with CUDA_VISIBLE_DEVICES="{value}"'
        stop = f'; its entry "{rejected}" names no further GPU' if rejected else ""
        fewer = known.remedy(f"Start one rank a GPU: --nproc-per-node {shown}.", scope="job")
        yield Draft(
            title=f"{node_names(recording, group)}: {count}{setting}{stop}",
            detail=f"The driver has {len(group[0].fact.gpus)} GPUs there. {_slices(group[0].fact)}".strip(),
            confidence=Confidence.PROVED,
            culprits=(*_setting_culprit(value), *node_culprits(recording, group)),
            evidence=(
                Evidence(
                    check="gpus",
                    text=f"a CUDA process is shown {shown} GPUs{setting}{stop}",
                    value=shown,
                    unit="GPUs",
                    expected=ranks if short else None,
                    expected_from="one GPU a rank" if short else "every entry names a GPU",
                ),
            ),
            remedies=(_show_all(group[0].fact), fewer) if short and shown else (_show_all(group[0].fact),),
            severity=asked_for(recording, Severity.ERROR if short else Severity.WARNING),
        )


def _setting_culprit(value: str | None) -> tuple[Culprit, ...]:
    return () if value is None else (Culprit(kind="setting", name="CUDA_VISIBLE_DEVICES"),)


#: Ranks, GPUs shown, CUDA_VISIBLE_DEVICES and its wrong entry: nodes alike in all of them are one finding.
_Selection = tuple[int, int, str | None, str | None]


def _selections(recording: Recording) -> dict[_Selection, list[Seen[GpusFact]]]:
    """The nodes on which the job is shown too few GPUs, or one of its entries names none."""
    groups: dict[_Selection, list[Seen[GpusFact]]] = {}
    world = recording.world
    for seen in recording.facts(GpusFact):
        ranks = len(world.ranks_of(seen.node)) if world is not None and world.backend == "nccl" else 0
        selection = _selection(seen.fact, ranks)
        if selection is not None:
            groups.setdefault(selection, []).append(seen)
    return groups


def _selection(fact: GpusFact, ranks: int) -> _Selection | None:
    shown = len(fact.visible)
    if fact.nvml_error is not None or (ranks <= shown and fact.rejected is None):
        return None
    short = _shortfall(fact, None)
    if short is not None and short.severity is Severity.ERROR and fact.rejected is None:
        return None  # DD303 names the missing GPUs; ranks without one are its victims
    return ranks, shown, fact.environment.get("CUDA_VISIBLE_DEVICES"), fact.rejected


def _slices(fact: GpusFact) -> str:
    sliced = any(gpu.mig_enabled for gpu in fact.gpus)
    return "With MIG a process is shown one slice, whatever their number." if sliced else ""


CHECK = Check(
    id="gpus",
    title="GPUs and their driver",
    where=Where.NODE,
    probe=probe,
    facts=(GpusFact,),
    rules=(driver_not_working, driver_hangs, gpus_missing, *health.RULES, too_few_visible),
    cost_s=0.3,
    deadline_s=60.0,
)
