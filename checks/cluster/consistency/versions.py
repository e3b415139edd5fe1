"""Versions and clocks that differ between nodes, and how one difference becomes one finding."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median_low
from typing import Generic

from ddp_doctor.facts.cluster import ConsistencyFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge.thresholds import CLOCK_ERROR_S, CLOCKS_APART_S, CLOCKS_FAR_APART_S
from ddp_doctor.knowledge.versions import release
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.views.software import with_the_right_nccl
from ddp_doctor.wording.differences import Split, Who, odd_culprits, odd_values, others, split, values_with_nodes
from ddp_doctor.wording.findings import likely, proved
from ddp_doctor.wording.nodes import host, hosts, name_list, node_culprit, node_pair
from ddp_doctor.wording.ranks import capital


@dataclass(frozen=True)
class Difference(Generic[Who]):
    """A value that differs between nodes or ranks, with its severity and source."""

    name: str
    split: Split[Who]
    severity: Severity
    effect: str
    source: str


def together(differences: Iterable[Difference[Who]]) -> list[list[Difference[Who]]]:
    """Group differences that split the nodes in the same way, worst first: one image or one shell is one cause."""
    groups = grouped((difference.split.parts, difference) for difference in differences)
    order = list(Severity)
    return [sorted(group, key=lambda difference: order.index(difference.severity)) for group in groups.values()]


def difference_draft(
    recording: Recording, group: Sequence[Difference[int]], title: str, detail: str, remedy: Remedy
) -> Draft:
    """Return one finding about nodes, without culprits if no value is usual."""
    culprits = odd_culprits(recording, group[0].split)
    return draft_of(group, title, detail, remedy, culprits, partial(values_with_nodes, recording))


def draft_of(
    group: Sequence[Difference[Who]],
    title: str,
    detail: str,
    remedy: Remedy,
    culprits: tuple[Culprit, ...],
    in_words: Callable[[Split[Who]], str],
    check: str = "",
) -> Draft:
    """Return one finding about a group, with the severity of its worst difference."""
    return likely(
        culprits,
        title,
        (
            Evidence(
                check=check,
                text=_named(difference.name, in_words(difference.split)),
                expected_from=f"{difference.effect}; {difference.source}",
            )
            for difference in group
        ),
        remedy,
        detail=detail,
        severity=group[0].severity,
    )


def _named(name: str, text: str) -> str:
    """Return the text with the name, unless it starts with it, as for settings (``NCCL_ALGO=Tree on node3``)."""
    return text if text.startswith(name) else f"{name}: {text}"


@rule("DD553", "clocks-apart", Consequence.RISK, ConsistencyFact)
def clocks_apart(recording: Recording) -> Iterator[Draft]:
    """The clocks of nodes differ.

    Finds: Reports a clock that differs from the median clock by more than 5 s; severity is info from 1 s. It is
        compared with the head node over the network, with an error of up to 0.2 s. With two nodes, it is unknown which
        clock is wrong.
    Why: Logs of several nodes cannot be ordered, certificates and Kerberos tickets are refused, and shared file systems
        and make mistake new files for old ones. Collectives are not affected.
    Remedy: Synchronize the clocks with chrony or another NTP client, from the same source on all nodes.
    See: https://chrony-project.org/documentation.html
    """
    facts = recording.facts(ConsistencyFact)
    clocks = {node.node: node.fact.clock_offset_s for node in facts if node.fact.clock_offset_s is not None}
    middle = median_low(clocks.values()) if clocks else 0.0
    off = {node: clock - middle for node, clock in clocks.items() if abs(clock - middle) > CLOCKS_APART_S}
    if not off:
        return
    worst = max(off, key=lambda node: abs(off[node]))
    apart = abs(off[worst])
    culprits = [node_culprit(recording, node) for node in sorted(off)]
    if 2 * len(off) >= len(clocks):  # with two nodes, one is wrong; with more, it is unknown which
        culprits = [node_pair(recording, *sorted(clocks))] if len(clocks) == 2 else []
    yield proved(
        culprits,
        _clock_title(recording, clocks, off, worst),
        Evidence(
            text=f"clock of {host(recording, worst)} compared with the median",
            value=round(off[worst], 1),
            unit="s",
            expected=0,
            expected_from="milliseconds, with NTP",
        ),
        remedy(
            "Synchronize the clocks of all nodes by NTP from the same source",
            "chronyc tracking",
            "timedatectl status",
            cost="files appear to come from the future if a clock is set back",
        ),
        detail=f"Compared with the head node's clock over the network, to within {CLOCK_ERROR_S:g} s.",
        severity=Severity.WARNING if apart > CLOCKS_FAR_APART_S else Severity.INFO,
    )


def _clock_title(recording: Recording, clocks: Mapping[int, float], off: Mapping[int, float], worst: int) -> str:
    if 2 * len(off) >= len(clocks):
        first, last = min(clocks, key=lambda node: clocks[node]), max(clocks, key=lambda node: clocks[node])
        apart = clocks[last] - clocks[first]
        return f"Clock of {host(recording, last)} is {_span(apart)} ahead of {host(recording, first)}"
    way = "ahead of" if off[worst] > 0 else "behind"
    few = hosts(recording, sorted(off))
    if len(off) == 1:
        return f"Clock of {few} is {_span(abs(off[worst]))} {way} the other {len(clocks) - 1} nodes"
    return f"Clocks of {few} differ by up to {_span(abs(off[worst]))} from the other nodes"


def _span(seconds: float) -> str:
    """Return ``40.2 s``, ``60 min``, ``26 h``."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


@rule("DD550", "nodes-run-different-versions", Consequence.RISK, ConsistencyFact)
def nodes_run_different_versions(recording: Recording) -> Iterator[Draft]:
    """Nodes run different versions of torch, NCCL, CUDA, the driver, Python or ddp-doctor.

    Finds: Reports the nodes that differ from the majority, with all their differences. Two nodes, or two halves, are
        listed without naming either as wrong. NCCL is compared only on nodes that DD205 does not report. Severity is
        error if NCCL differs and the job uses it, and info for patch releases of Python or of the driver and for
        software that gloo does not use.
    Why: Ranks with different releases of NCCL wait for each other forever: they misread each other's first message
        ("mismatch in info from procs", 2.21.5 to 2.32.3 on simulated GPUs) before NCCL compares versions. Only releases
        with the same message format get to that comparison, which refuses them ("Mismatched NCCL version detected").
        Different releases of torch are not tested with each other. A difference shows as a hang, or not at all.
    Remedy: Start all nodes from the same image or environment.
    See: NCCL src/init.cc, initTransportsRank
        docs/reference/nccl-planted.md
    """
    for group in together(_versions(recording)):
        parts = group[0].split
        if parts.usual is None:
            names = name_list([difference.name for difference in group])
            title = f"Nodes run different versions of {names}: {values_with_nodes(recording, parts)}"
        else:
            here = name_list([f"{difference.name} {odd_values(difference.split)}" for difference in group])
            there = name_list([f"{difference.name} {difference.split.usual}" for difference in group])
            title = f"{hosts(recording, parts.few)} {'runs' if len(parts.few) == 1 else 'run'} {here}, but"
            title += f" {others(parts)} {'runs' if parts.many == 1 else 'run'} {there}"
        detail = f"{capital(group[0].effect)}."
        is_doctor = [each.name for each in group] == [_DOCTOR]
        yield difference_draft(recording, group, title, detail, _SAME_DOCTOR if is_doctor else _SAME_IMAGE)


_SAME_IMAGE = remedy(
    "Start all nodes from the same image, module or virtual environment",
    "python -m torch.utils.collect_env",
    cost="one node fewer in the job until it has the same software",
)
_DOCTOR = "ddp-doctor"
_SAME_DOCTOR = _SAME_IMAGE.model_copy(update={"commands": ("ddp-doctor --version",)})


def _versions(recording: Recording) -> Iterator[Difference[int]]:
    software = {node.node: node.fact for node in recording.facts(Software)}
    nccl, cuda = (Severity.ERROR, Severity.WARNING) if recording.on_nccl else (Severity.INFO, Severity.INFO)
    refuses = (
        "ranks with different NCCL releases hang or cannot connect"
        if recording.on_nccl
        else "gloo, which this run uses, does not need NCCL"
    )
    untested = "different torch versions are not tested together"
    kernels, features = "the ranks compute with different kernels", "drivers differ in features and faults"
    pickles, driver = "packages and pickled objects may differ", "/proc/driver/nvidia/version"
    # The last number: if versions differ only after this many parts, the difference is info.
    for name, field, severity, effect, source, series in (
        ("NCCL", "nccl_loaded", nccl, refuses, "NCCL src/init.cc", None),
        ("torch", "torch_version", Severity.WARNING, untested, "torch/version.py", None),
        ("torch's CUDA", "torch_cuda", cuda, kernels, "torch/version.py", None),
        ("the NVIDIA driver", "driver", cuda, features, driver, 1),
        ("Python", "python", Severity.WARNING, pickles, "sys.version", 2),
    ):
        compared = with_the_right_nccl(recording) if name == "NCCL" else software
        known = {node: getattr(fact, field) for node, fact in compared.items() if getattr(fact, field)}
        found = split({node: (version, version) for node, version in known.items()})
        if found is not None:
            is_one_series = series is not None and len({release(version)[:series] for version in known.values()}) == 1
            yield Difference(name, found, Severity.INFO if is_one_series else severity, effect, source)
    doctors = {node.node: node.fact.tool_version for node in recording.facts(ConsistencyFact)}
    found = split({node: (version, version) for node, version in doctors.items()})
    if found is not None:
        effect = "different versions of ddp-doctor may measure differently"
        yield Difference(_DOCTOR, found, Severity.WARNING, effect, "the version that each ddp-doctor reports")
