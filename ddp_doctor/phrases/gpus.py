"""How findings speak of GPUs: in a title, as culprits, and as one line of evidence each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddp_doctor.model.choices import Backend, Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.gpu_facts import Gpu

#: A sentence with more GPUs than this gives their number; culprits and evidence name them all.
NAMES_IN_A_SENTENCE = 4

Hits = Sequence[tuple[int, Gpu]]  # node ranks, and GPUs on them


@dataclass(frozen=True)
class Sight:
    """What was seen on one GPU, and what is expected."""

    text: str
    value: float | None = None
    unit: str | None = None
    expected: float | None = None
    expected_from: str = ""


def asked_for(recording: Recording, severity: Severity) -> Severity:
    """With --backend gloo the job leaves the GPUs alone: what is wrong with them is worth knowing only."""
    return Severity.INFO if recording.options.backend is Backend.GLOO else severity


def gpu_draft(
    recording: Recording,
    hits: Hits,
    what: str,
    sight: Callable[[Gpu], Sight],
    *remedies: Remedy,
    detail: str,
    severity: Severity,
    confidence: Confidence = Confidence.PROVED,
) -> Draft:
    """A finding "GPU 3 (0000:61:00.0) on node0: ``what``", with one line of evidence per GPU."""
    sights = [(gpu.label, sight(gpu)) for _, gpu in hits]
    return Draft(
        title=f"{gpu_names(recording, hits)}: {what}",
        detail=detail,
        confidence=confidence,
        culprits=gpu_culprits(recording, hits),
        evidence=tuple(
            Evidence(
                check="gpus",
                text=f"{label}: {seen.text}",
                value=seen.value,
                unit=seen.unit,
                expected=seen.expected,
                expected_from=seen.expected_from,
            )
            for label, seen in sights
        ),
        remedies=remedies,
        severity=asked_for(recording, severity),
    )


def gpu_names(recording: Recording, hits: Hits) -> str:
    """Pairs of node and GPU for a sentence: "GPU 3 (0000:61:00.0) on node0", "6 GPUs on node0 and node1"."""
    hosts = list(dict.fromkeys(_host(recording, node) for node, _ in hits))
    if len(hits) > NAMES_IN_A_SENTENCE:
        named = hosts if len(hosts) <= NAMES_IN_A_SENTENCE else [f"{len(hosts)} nodes"]
        return f"{len(hits)} GPUs on {_joined(named)}"
    return _joined([f"{_joined(_short(hits, host, recording))} on {host}" for host in hosts])


def gpu_culprits(recording: Recording, hits: Hits) -> tuple[Culprit, ...]:
    """One culprit per GPU, with UUID and bus id for its name."""
    return tuple(
        Culprit(kind="gpu", node=_host(recording, node), node_rank=node, gpu=gpu.index, name=gpu.label)
        for node, gpu in hits
    )


def _host(recording: Recording, node: int) -> str:
    return recording.world.hostname(node) if recording.world else f"node rank {node}"


def _short(hits: Hits, host: str, recording: Recording) -> list[str]:
    mine = [gpu for node, gpu in hits if _host(recording, node) == host]
    return [f"GPU {gpu.index} ({gpu.bus_id})" if gpu.bus_id else f"GPU {gpu.index}" for gpu in mine]


def _joined(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
