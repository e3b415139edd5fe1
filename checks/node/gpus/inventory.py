"""DD303, DD309-DD311: fewer GPUs than there should be or than the job has ranks, sliced GPUs, different models."""

import shlex
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ddp_doctor.checks.node.gpus.condition import severity_of_use
from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge.gpu import nvml
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Backend, Consequence, Severity, Status
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy, Setting
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import FIND_GPU
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import hits_of
from ddp_doctor.views.kernel_log import NodeView
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.gpus import asked_for, gpu_draft
from ddp_doctor.wording.kernel_log import xid_lines
from ddp_doctor.wording.nodes import by_cause, node_culprits, node_names, of_nodes
from ddp_doctor.wording.ranks import capital

REQUIRED = "--require-gpus"


@dataclass(frozen=True)
class Shortfall:
    """Fewer GPUs than expected, and the source of the expected number."""

    have: int
    expected: int
    source: str
    named: tuple[str, ...] = ()  # bus ids of the missing GPUs, if known
    severity: Severity = Severity.ERROR


def shortfall_of(fact: GpusFact, required: int | None, *, of_node: bool = False) -> Shortfall | None:
    """Return the shortfall by the most reliable count, or None if NVML fails entirely (DD301 and DD302 report that).

    ``of_node``: ``required`` counts the node's GPUs; its job and CUDA_VISIBLE_DEVICES may select only some of them.
    """
    if fact.nvml_error is not None:
        return None
    have = sum(gpu.error != "no_permission" for gpu in fact.gpus)
    unlisted = fact.unlisted()
    if unlisted:
        return Shortfall(have, have + len(unlisted), "the PCI bus", unlisted)
    sliced = any(gpu.mig_enabled for gpu in fact.gpus)  # a grant then counts slices
    if fact.has_grant() and not sliced and have < (fact.granted or 0):
        return Shortfall(have, fact.granted or 0, "the scheduler's grant")
    counted = len(fact.gpus) if of_node else len(fact.visible)
    if required is not None and counted < required:
        return Shortfall(counted, required, REQUIRED)
    unbound = tuple(gpu.bus_id for gpu in fact.gpus_expected() if gpu.driver is None)
    if unbound:
        return Shortfall(have, have + len(unbound), "the PCI bus", unbound, Severity.WARNING)
    return None


@rule("DD303", "gpus-missing", Consequence.FAILS)
def gpus_missing(recording: Recording) -> Iterator[Draft]:
    """The driver shows fewer GPUs than expected.

    Finds: GPUs bound to the driver on the PCI bus that NVML does not list (except in containers and SLURM steps,
        which see only their own); fewer than the scheduler granted; fewer than --require-gpus, for the job or, with
        `ddp-doctor prolog`, on the node, regardless of its job's share. A warning for a GPU without any kernel
        driver if others work.
    Why: Ranks without a GPU fail at start; a world smaller than planned changes the training.
    Remedy: Look for the missing GPU in the kernel log; reboot, or take the node out of service.
    See: NVIDIA Xid catalog, Xid 79; NVIDIA open-gpu-kernel-modules, "RmInitAdapter failed"
    """
    absent = [reading for reading in recording.of_check("gpus") if reading.status is Status.ABSENT]
    facts = [*recording.facts(GpusFact), *(FactAt(GpusFact(), reading.node, None, reading) for reading in absent)]
    required, of_node = recording.options.require_gpus, recording.command.is_of_root
    shortfall = partial(shortfall_of, required=required, of_node=of_node)
    for short, group in by_cause(facts, shortfall).items():
        have = f"only {short.have}" if short.have else "none"
        missing = f"; missing: {', '.join(short.named)}" if short.named else ""
        nodes = {node.node for node in group}
        shows = "the driver lists" if of_node else "the job can use"
        # --require-gpus is an explicit request, whatever else is set. Otherwise the job's use of GPUs decides.
        wanted = Severity.ERROR if short.source == REQUIRED else severity_of_use(recording, group)
        yield proved(
            of_nodes(recording, group),
            f"{{who}}: {shows} {have} of {short.expected} GPUs{missing}",
            (
                Evidence(
                    text="GPUs of the driver" if of_node else "usable GPUs",
                    value=short.have,
                    unit="GPUs",
                    expected=short.expected,
                    expected_from=short.source,
                ),
                *xid_lines(recording, partial(_is_missing, nodes, short.named)),
            ),
            _show_all(group[0].fact) if short.source == REQUIRED and not of_node else FIND_GPU,
            detail=f"{capital(shows)} {short.have} GPUs, but {short.source} has {short.expected}.",
            severity=short.severity if wanted.at_least(short.severity) else wanted,
        )


def _is_missing(nodes: Container[int], named: Container[str], view: NodeView, device: str) -> bool:
    return view.node in nodes and (device in named or not device)


def _show_all(fact: GpusFact) -> Remedy:
    """Return the fix that gives the job more GPUs: CUDA_VISIBLE_DEVICES, if it hides them."""
    value = fact.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or len(fact.visible) >= len(fact.gpus):
        return by_operator("Request more GPUs from the scheduler, or use a machine that has them", scope="job")
    why = f"it shows {len(fact.visible)} of {len(fact.gpus)} GPUs"
    unset = by_operator(
        "Correct or unset CUDA_VISIBLE_DEVICES, unless the scheduler set it",
        scope="job",
        cost="other GPUs may be in use on a shared machine",
        undo=f"export CUDA_VISIBLE_DEVICES={shlex.quote(value)}",
        references=(nvml.CUDA_VARIABLES,),
    )
    return unset.model_copy(update={"settings": (Setting(name="CUDA_VISIBLE_DEVICES", action="unset", why=why),)})


@rule("DD311", "job-sees-too-few-gpus", Consequence.FAILS, GpusFact)
def job_sees_too_few_gpus(recording: Recording) -> Iterator[Draft]:
    """A job sees no GPU or fewer GPUs than it has ranks, or names a GPU that does not exist.

    Finds: With NCCL, more ranks on a node than a CUDA process sees GPUs: an error. A machine with GPUs that are all
        hidden from the job (CUDA_VISIBLE_DEVICES with a wrong first entry, empty, -1 or NoDevFiles,
        HIP_VISIBLE_DEVICES, a SLURM step without a grant): an error for a run, unless --backend gloo selects CPUs.
        An entry of CUDA_VISIBLE_DEVICES that names no GPU, or names one twice, while the ranks still fit: a
        warning.
    Why: Rank N uses GPU N: ranks beyond the last die with "invalid device ordinal", and NCCL refuses two ranks on
        one GPU. CUDA silently drops the first wrong entry and all later ones. A job that sees no GPU runs on the
        CPU, tens of times slower.
    Remedy: Start as many ranks as visible GPUs, correct CUDA_VISIBLE_DEVICES, or use --backend gloo.
    See: CUDA Programming Guide, CUDA Environment Variables; NVIDIA/nccl init.cc, "Duplicate GPU detected"
    """
    selections = [(_selection(recording, node), node) for node in recording.facts(GpusFact)]
    for seen, group in grouped(selections).items():
        if seen is None:
            continue
        short, fact = seen.ranks > seen.shown, group[0].fact
        is_fatal = short or (not seen.shown and not recording.command.is_of_root)  # a CPU job also has no GPUs
        count = f"{seen.ranks} ranks, but {seen.words()}" if short else seen.words()
        stop = f'; CUDA stops at entry "{seen.rejected}"' if seen.rejected else ""
        setting = f" with {seen.setting}" if seen.setting else ""
        name = (seen.setting or "").partition("=")[0]
        remedies = [_show_all(fact)]
        if short and seen.shown:
            remedies.append(by_operator(f"Start one rank per GPU: --nproc-per-node {seen.shown}", scope="job"))
        if not seen.shown:
            remedies.append(by_operator("Use --backend gloo for a job on CPUs", scope="job"))
        sliced = any(gpu.mig_enabled for gpu in fact.gpus)
        there = f"The driver has {len(fact.gpus)} GPUs there."
        if not fact.visible:
            no_grant = "SLURM_PROCID" in fact.environment and not fact.granted
            there = f"{'SLURM granted this step none. ' if no_grant else ''}The job would run on the CPU."
        yield proved(
            (*([Culprit(kind="setting", name=name)] if name else []), *node_culprits(recording, group)),
            f"{node_names(recording, group)}: {count}{setting}{stop}",
            Evidence(
                text=f"GPUs visible to a process of the job: {seen.shown}{setting}{stop}",
                value=seen.shown,
                unit="GPUs",
                expected=seen.ranks if short else None,
                expected_from="one GPU per rank" if short else "every entry names a GPU",
            ),
            *remedies,
            detail=there + (" With MIG, a process sees only one slice." if sliced else ""),
            severity=asked_for(recording, Severity.ERROR if is_fatal else Severity.WARNING),
        )


class _Selection(NamedTuple):
    """The GPUs that the job sees; nodes with equal selections share a finding."""

    ranks: int
    shown: int
    there: str  # how many GPUs the machine has
    setting: str | None  # that made the selection
    rejected: str | None  # its wrong entry

    def words(self) -> str:
        """Describe how many GPUs the job sees."""
        if not self.shown:
            return f"the job sees none of {self.there}"
        return f"only {self.shown} GPU{' is' if self.shown == 1 else 's are'} visible"


def _selection(recording: Recording, node: FactAt[GpusFact]) -> _Selection | None:
    """Return the selection on a node with too few GPUs for the job or with an invalid entry, or None."""
    fact, world = node.fact, recording.world
    ranks = len(world.ranks_of(node.node)) if world is not None and world.backend == "nccl" else 0
    wants_gpus = recording.command.has_ranks and recording.options.backend is not Backend.GLOO
    shown = len(fact.visible)
    blind = wants_gpus and not shown and bool(fact.in_the_machine() or fact.others_hidden)
    if fact.nvml_error is not None or (ranks <= shown and fact.rejected is None and not blind):
        return None
    short = shortfall_of(fact, None)
    if short is not None and short.severity is Severity.ERROR and fact.rejected is None:
        return None  # DD303 reports the missing GPUs, which leave ranks without one
    value, count = fact.environment.get("CUDA_VISIBLE_DEVICES"), fact.in_the_machine()
    setting = None if value is None else f'CUDA_VISIBLE_DEVICES="{value}"'
    there = fact.others_hidden or ("its only GPU" if count == 1 else f"the {count} GPUs there")
    return _Selection(ranks, shown, there, fact.others_hidden_by or setting, fact.rejected)


@rule("DD309", "gpu-in-mig-mode", Consequence.KNOWN, GpusFact)
def gpu_in_mig_mode(recording: Recording) -> Iterator[Draft]:
    """A GPU is in MIG mode, which divides it into slices.

    Finds: GPUs of the job with MIG mode on, with or without slices.
    Why: A process sees only one slice, slices have no peer-to-peer path to each other, and in MIG mode without
        slices CUDA sees no GPU. One rank on one slice is fine.
    Remedy: Use undivided GPUs for DDP over several GPUs.
    See: NVIDIA MIG User Guide, CUDA Device Enumeration and Application Considerations
    """
    hits = hits_of(recording, lambda gpu: gpu.mig_enabled)
    if hits:
        yield gpu_draft(
            recording,
            hits,
            "MIG mode is on, so each process sees one slice",
            lambda gpu: Evidence(text=f"MIG mode on, {len(gpu.mig_uuids)} slices", expected_from=nvml.MIG_GUIDE),
            by_operator(
                "Request whole GPUs for DDP, or have an operator turn MIG mode off",
                "sudo nvidia-smi -i INDEX -mig 0",
                scope="cluster",
                cost="root access and an idle GPU; removes the slices",
                undo="sudo nvidia-smi -i INDEX -mig 1, then recreate the slices",
                references=(nvml.MIG_GUIDE,),
            ),
            detail="NCCL has no peer-to-peer path between slices.",
        )


@rule("DD310", "gpu-models-differ", Consequence.COST, GpusFact)
def gpu_models_differ(recording: Recording) -> Iterator[Draft]:
    """The ranks have to run on GPUs of different models.

    Finds: More ranks on a node than it has GPUs of one model, or nodes with different models. A small display card
        in addition to the job's GPUs is not reported.
    Why: Every rank waits for the slowest, and the smallest memory limits the batch.
    Remedy: Choose GPUs of one model, or request one type from the scheduler.
    See: PyTorch docs, DistributedDataParallel: gradients are synchronized in every backward pass
    """
    hits = [(node.node, gpu) for node in recording.facts(GpusFact) for gpu in _gpus_of_ranks(recording, node)]
    models = Counter(gpu.name or "unknown" for _, gpu in hits)
    if len(models) > 1:
        usual, count = models.most_common(1)[0]
        few = [(node, gpu) for node, gpu in hits if gpu.name != usual] if 2 * count > len(hits) else hits
        yield gpu_draft(
            recording,
            few,
            f"models differ: {' and '.join(sorted(models))}"
            if few is hits
            else (
                "model differs from other GPUs:"
                f" {' and '.join(sorted({gpu.name or 'unknown' for _, gpu in few}))}, not"
                f" {usual}"
            ),
            lambda gpu: Evidence(text=f"{gpu.name}", expected_from=f"one model; most are {usual}"),
            by_operator(
                "Use GPUs of one model: list them by UUID in CUDA_VISIBLE_DEVICES, or"
                " request one type from the scheduler",
                "nvidia-smi --query-gpu=index,name,uuid --format=csv",
                scope="job",
                cost="fewer GPUs in the job",
                undo="unset CUDA_VISIBLE_DEVICES",
                references=(nvml.CUDA_VARIABLES,),
            ),
            detail="The job runs at the speed and with the memory of the weakest GPU.",
        )


def _gpus_of_ranks(recording: Recording, node: FactAt[GpusFact]) -> list[Gpu]:
    """Return the GPUs of a node that its ranks use: only the usual model if there are enough of it."""
    shown = [gpu for gpu in node.fact.gpus if gpu.index in node.fact.visible and gpu.name]
    if node.fact.hidden or not shown:
        return []
    usual, count = Counter(gpu.name for gpu in shown).most_common(1)[0]
    ranks = len(recording.world.ranks_of(node.node)) if recording.world else len(shown)
    return shown if count < min(ranks, len(shown)) else [gpu for gpu in shown if gpu.name == usual]
