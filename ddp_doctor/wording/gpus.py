"""Texts about GPUs in findings: in a title, as culprits, and as one line of evidence each."""

import re
from collections.abc import Callable, Sequence

from ddp_doctor.facts.node.gpus import Gpu, GpuProcess
from ddp_doctor.model.choices import Backend, Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.gpus import Hits
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, finding
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, first_names, host, on_hosts

#: A bus id that is safe in a command, because a recording may come from anyone.
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


def asked_for(recording: Recording, severity: Severity) -> Severity:
    """Return the severity; only info with --backend gloo, because the job then does not use the GPUs."""
    return Severity.INFO if recording.options.backend is Backend.GLOO else severity


def process_list(processes: Sequence[GpuProcess]) -> str:
    """Return the first processes on a GPU: "pid 4711 (python3), pid 4712 (name unknown)"."""
    return first_names([f"pid {process.pid} ({process.name or 'name unknown'})" for process in processes], 4)


def gpu_draft(
    recording: Recording,
    hits: Hits,
    what: str,
    seen: Callable[[Gpu], Evidence],
    *remedies: Remedy,
    detail: str,
    severity: Severity | None = None,
    confidence: Confidence = Confidence.PROVED,
    beside: Sequence[Evidence] = (),
) -> Draft:
    """Return a finding "GPU 3 (0000:61:00.0) on node0: ``what``", with evidence for each GPU, and ``beside``."""
    lines = []
    for node, gpu in hits[:LINES_OF_EVIDENCE]:
        here, at = seen(gpu), f" on {host(recording, node)}" if recording.several_nodes else ""
        lines.append(here.model_copy(update={"text": f"{gpu.label}{at}: {here.text}"}))
    if hits[LINES_OF_EVIDENCE:]:
        lines.append(Evidence(text=f"and {len(hits) - LINES_OF_EVIDENCE} more GPUs, listed in the JSON report"))
    return finding(
        gpu_culprits(recording, hits),
        f"{gpu_names(recording, hits)}: {what}",
        (*lines, *beside),
        *(_remedy_for_gpus(remedy, hits) for remedy in remedies),
        confidence=confidence,
        detail=detail,
        severity=Severity.INFO if recording.options.backend is Backend.GLOO else severity,
    )


def _remedy_for_gpus(remedy: Remedy, hits: Hits) -> Remedy:
    """Return the fix with INDEX replaced by the GPUs, one command each; unchanged for GPUs on several nodes."""
    if len({node for node, _ in hits}) > 1 or len(hits) > NAMES_IN_A_SENTENCE:
        return remedy
    # A bus id is the same in every container. The index replaces an invalid bus id.
    ids = [(gpu.bus_id or "", gpu.index) for _, gpu in hits]
    names = [bus_id if _BUS_ID.fullmatch(bus_id) else str(index) for bus_id, index in ids]

    def for_each(command: str) -> list[str]:
        return [command.replace("INDEX", name) for name in names] if "INDEX" in command else [command]

    commands = tuple(line for command in remedy.commands for line in for_each(command))
    return remedy.model_copy(update={"commands": commands, "undo": "; ".join(for_each(remedy.undo))})


def gpu_names(recording: Recording, hits: Hits) -> str:
    """Return pairs of node and GPU for a sentence: "GPU 3 (0000:61:00.0) on node0", "6 GPUs on node0 and node1"."""
    names = [(node, f"GPU {gpu.index}{f' ({gpu.bus_id})' if gpu.bus_id else ''}") for node, gpu in hits]
    return on_hosts(recording, names, "GPUs")


def gpu_culprits(recording: Recording, hits: Hits) -> tuple[Culprit, ...]:
    """Return one culprit per GPU, named by UUID and bus id."""
    return tuple(
        Culprit(kind="gpu", node=host(recording, node), node_rank=node, gpu=gpu.index, name=gpu.label)
        for node, gpu in hits
    )
