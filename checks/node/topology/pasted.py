"""Readings from pasted or saved output: another source of the facts that the probe collects live.

One text may contain several outputs, of several kinds and hosts, with anything in between. Each kind has its own
reader. All readers read the entire text, and their results are put in the order of the text.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from ddp_doctor.checks.node.topology.formats.gpu_tables import find_p2p_tables, find_rocm_topologies
from ddp_doctor.checks.node.topology.formats.nccl_xml import find_nccl_topologies
from ddp_doctor.checks.node.topology.formats.nvlink_table import find_nvlinks
from ddp_doctor.checks.node.topology.formats.topo_matrix import TopologyError, find_matrices, refuse_binary, why_none
from ddp_doctor.facts.node.topology import NvlinksFact, P2pStatusFact, RocmTopologyFact, TopologyFact, TopologyMatrix
from ddp_doctor.knowledge.topology.link_codes import CAPABILITY_NAMES
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.parse.text import plain_lines

#: A paste may be a whole log; only its beginning goes into the recording.
_KEPT_CHARACTERS = 200_000
#: Maximum number of outputs of a kind in one text; more hosts than this are not a paste.
_MOST_OUTPUTS = 1024
#: A GPU's model in ``nvidia-smi -L`` and torch's collect_env.
_MODEL = re.compile(r"(?<!\S)GPU ([0-9]{1,4}): ((?:NVIDIA|Tesla) [ -'*-~]{1,79}?) *(?:\(UUID: ?[^)\n]{1,60}\)|$)")
#: The CPU's vendor in /proc/cpuinfo, or its vendor or model in ``lscpu``.
_CPU = re.compile(r"\s*(?:Vendor ID|vendor_id|Model name|model name)\s*:\s*(.{1,100})")
_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel", "ARM": "ARM|Neoverse|Grace"}
_NO_AMD = "AMD GPUs are not supported yet: their topology was read, and nothing is concluded from it"


@dataclass(frozen=True)
class Found:
    """One output in a text: the indices of its lines, its fact, and its kind.

    A host has one output of each ``kind``, so two of a kind belong to two hosts. ``gpus`` is empty if the output may
    cover only some of the host's GPUs. ``unsure`` is the reason why the rules do not use it.
    """

    lines: range
    fact: Fact
    kind: str
    gpus: frozenset[str] = frozenset()
    unsure: str | None = None


def _found(lines: range, fact: Fact | TopologyMatrix) -> Found:
    if isinstance(fact, TopologyMatrix):
        unsure = "; ".join(fact.warnings) if fact.unknown_links() else None
        topology = fact if isinstance(fact, TopologyFact) else TopologyFact(**dict(fact))
        return Found(lines, topology, TopologyFact.KIND, frozenset(fact.gpus), unsure)
    if isinstance(fact, P2pStatusFact):
        return Found(lines, fact, f"{fact.KIND} {fact.capability}", frozenset(fact.gpus))
    if isinstance(fact, RocmTopologyFact):
        return Found(lines, fact, fact.KIND, frozenset(fact.gpus), _NO_AMD)
    return Found(lines, fact, fact.KIND)


#: Finds outputs of a kind, and why others are refused; raises TopologyError if it cannot continue.
Reader = Callable[[Sequence[str]], Iterable[tuple[range, Fact | TopologyMatrix] | TopologyError]]
#: A reader does not see the lines that an earlier reader took: the tables of -p2p look much like a matrix.
READERS: tuple[Reader, ...] = (find_nccl_topologies, find_p2p_tables, find_nvlinks, find_rocm_topologies, find_matrices)


def read_pasted(text: str) -> tuple[Reading, ...]:
    """Return the readings of a text: one per output and one per refused kind, at least one."""
    raw: str | None = text[:_KEPT_CHARACTERS]
    try:
        refuse_binary(text)
    except TopologyError as error:
        return (_refused(error, raw),)
    lines = plain_lines(text)
    models, cpu_vendor = _gpu_models(lines), _cpu_vendor(lines)
    found: list[Found] = []
    refused: list[TopologyError] = []
    for reader in READERS:
        taken, first_refused = _taken_and_first_refused(reader, lines)
        refused += [first_refused] if first_refused else []
        found += taken
        for table in taken:
            lines[table.lines.start : table.lines.stop] = [""] * len(table.lines)
    if not found and not refused:
        refused.append(TopologyError(why_none(text)))
    found.sort(key=lambda table: table.lines.start)
    hosts = list(_hosts(found))
    readings = []
    for table, host in zip(found, hosts, strict=True):
        fact = _with_tables(table, host, found, hosts)
        if isinstance(fact, TopologyFact) and hosts[-1] == 0:
            vendor = fact.cpu_vendor or cpu_vendor
            fact = fact.model_copy(update={"models": models, "cpu_vendor": vendor})
        status = Status.FAILED if table.unsure else Status.COLLECTED
        readings.append(Reading(check="topology", status=status, node=host, fact=fact.recorded(), reason=table.unsure))
    readings += [_refused(error) for error in refused]
    return (readings[0].model_copy(update={"raw": raw}), *readings[1:])


def _gpu_models(lines: Iterable[str]) -> dict[str, str]:
    """Return the model of each GPU; empty if the text gives a GPU two models."""
    models = dict[str, str]()
    for line in lines:
        named = _MODEL.search(line[:500])
        if named and models.setdefault(f"GPU{named[1]}", named[2]) != named[2]:
            return {}
    return models


def _cpu_vendor(lines: Iterable[str]) -> str | None:
    """Return the vendor of the CPU as /proc/cpuinfo names it; None if the text names none or several."""
    said = " ".join(found[1] for line in lines if (found := _CPU.match(line[:200])))
    vendors = [vendor for vendor, names in _VENDORS.items() if re.search(rf"\b{vendor}\b|\b(?:{names})\b", said)]
    return vendors[0] if len(vendors) == 1 else None


def _taken_and_first_refused(reader: Reader, lines: Sequence[str]) -> tuple[list[Found], TopologyError | None]:
    taken: list[Found] = []
    refused: list[TopologyError] = []
    outputs = iter(reader(lines))
    try:
        for output in islice(outputs, _MOST_OUTPUTS):
            if isinstance(output, TopologyError):
                refused.append(output)
            else:
                taken.append(_found(*output))
        if next(outputs, None) is not None:
            return [], TopologyError(f"the text holds more than {_MOST_OUTPUTS} outputs of one kind")
    except TopologyError as error:
        refused.append(error)
    return taken, next(iter(refused), None)


def _hosts(found: Iterable[Found]) -> Iterable[int]:
    """Yield the host number of each output: a new host starts if a kind is repeated or the GPUs differ."""
    host, kinds, gpus = 0, set[str](), frozenset[str]()
    for table in found:
        if table.kind in kinds or (table.gpus and gpus and table.gpus != gpus):
            host, kinds, gpus = host + 1, set(), frozenset()
        kinds.add(table.kind)
        gpus = table.gpus or gpus
        yield host


def _with_tables(table: Found, host: int, found: Sequence[Found], hosts: Sequence[int]) -> Fact:
    """Return a table's fact; a matrix includes the host's other tables of its GPUs, as NVML reports them live."""
    if not isinstance(table.fact, TopologyFact):
        return table.fact
    beside = [beside_it.fact for beside_it, its in zip(found, hosts, strict=True) if its == host]
    p2p = {
        CAPABILITY_NAMES[letter]: fact.statuses
        for fact in beside
        if isinstance(fact, P2pStatusFact)
        for letter in fact.capability or ""
        if letter in CAPABILITY_NAMES
    }
    nvlinks = tuple(gpu for fact in beside if isinstance(fact, NvlinksFact) for gpu in fact.gpus)
    return table.fact.model_copy(update={"p2p": p2p, "nvlinks": nvlinks})


def _refused(error: TopologyError, raw: str | None = None) -> Reading:
    return Reading(check="topology", status=Status.FAILED, reason=str(error), raw=raw)
