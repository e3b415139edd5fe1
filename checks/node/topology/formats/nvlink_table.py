"""The NVLinks of each GPU: the output of ``nvidia-smi nvlink -s``, also available from NVML.

    GPU 0: NVIDIA H100 NVL (UUID: GPU-8932f937-…)
             Link 0: 26.562 GB/s
             Link 1: <inactive>
    GPU 1: NVIDIA RTX A6000 (UUID: GPU-02c05ee3-…)
    NVML: Unable to retrieve NVLink information as all links are inActive
    GPU 2: NVIDIA RTX A4000 (UUID: GPU-c70cc88f-…)
    Device does not have or support Nvlink

A GPU of the second or third kind reports no links. nvidia-smi omits a link whose state it could not read. Users remove
the UUIDs and replace lines with ``...``.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddp_doctor.checks.node.topology.formats.topo_rows import TopologyError
from ddp_doctor.facts.node.topology import GpuNvlinks, Nvlink, NvlinksFact

_GPU = re.compile(r"(?<!\S)GPU ([0-9]{1,4}): (?!Link )([!-'*-~][ -'*-~]{0,79}?) *(\(UUID: ?[^)\n]{1,60}\)|$)")
_LINK = re.compile(r"(?<!\S)Link ([0-9]{1,3}): (?:([0-9]{1,5}(?:\.[0-9]{1,6})?) GB/s|(<inactive>))\s*")
#: Counters of ``nvlink -e`` ("Replay Errors: 0") and addresses of ``-R`` are not link states.
_LINK_LIKE = re.compile(r"(?<!\S)Link [0-9]{1,3}: *(?:[0-9<]|[^:]*$)")
#: Marks that users put in place of omitted lines.
_LEFT_OUT = re.compile(r"[\s>]*(?:\.{2,}|…|\[(?:\.{3}|…)\])\s*")
_NONE = re.compile(r"Unable to retrieve NVLink information|does not have or support NVLink", re.IGNORECASE)


@dataclass
class _Section:
    """The part of the text about one GPU."""

    line: int
    number: int
    name: str
    links: dict[int, Nvlink] = field(default_factory=dict)
    has_none: bool = False
    is_shortened: bool = False


def find_nvlinks(lines: Sequence[str]) -> Iterator[tuple[range, NvlinksFact]]:
    """Yield the outputs in plain lines, each with the indices of their lines. Raises TopologyError.

    A repeated GPU number starts another host's output.
    """
    sections: list[_Section] = []
    end = 0
    for section, section_end in _sections(lines):
        if section.number in {section.number for section in sections}:
            yield range(sections[0].line, end), _fact(sections)
            sections = []
        sections.append(section)
        end = section_end
    if sections:
        yield range(sections[0].line, end), _fact(sections)


def _sections(lines: Sequence[str]) -> Iterator[tuple[_Section, int]]:
    """Yield each GPU followed by links, or by the sentence that it has none, unlike in ``nvidia-smi -L``."""
    current: _Section | None = None
    has_uuids = False
    for index, line in enumerate(lines):
        if not line:
            continue  # does not end a section
        text = line[:500]
        title = _GPU.search(text)
        if title and has_uuids and not title[3]:
            title = None  # a title without UUID among titles with UUIDs is from another program
        goes_on = current is not None and not title and (_take(current, text, index) or not text.strip())
        if current is not None and not goes_on:
            if current.links or current.has_none:
                yield current, index
            current = None
        if title:
            current = _Section(index, int(title[1]), title[2])
            has_uuids = has_uuids or bool(title[3])
            current.has_none = _NONE.search(text, title.end()) is not None
        elif current is None and _LINK.search(text):
            raise TopologyError("no line that starts with `GPU N:` comes before this NVLink state", index + 1, text)
    if current is not None and (current.links or current.has_none):
        yield current, len(lines)


def _take(section: _Section, text: str, index: int) -> bool:
    """Return True and record the line if it belongs to this GPU."""
    found = _LINK.search(text)
    if section.links and _LEFT_OUT.fullmatch(text):
        section.is_shortened = True
        return True
    if found is None or found.end() != len(text):
        if _LINK_LIKE.search(text):
            reason = f"the state of this link of GPU{section.number} is cut off or not known"
            raise TopologyError(reason, index + 1, text)
        section.has_none = section.has_none or _NONE.search(text) is not None
        return _NONE.search(text) is not None
    number = int(found[1])
    link = Nvlink(index=number, active=found[3] is None, gb_per_s=float(found[2]) if found[2] else None)
    if section.links.setdefault(number, link) != link:
        raise TopologyError(f"GPU{section.number} has two different states for link {number}", index + 1, text)
    return True


def _fact(sections: Sequence[_Section]) -> NvlinksFact:
    gpus = tuple(
        GpuNvlinks(
            gpu=f"GPU{section.number}", name=section.name, links=tuple(section.links[n] for n in sorted(section.links))
        )
        for section in sections
    )
    shortened = [
        f"the links of GPU{section.number} are not all there: the text leaves some out"
        for section in sections
        if section.is_shortened
    ]
    return NvlinksFact(gpus=gpus, warnings=(*shortened, *_doubts(gpus)))


def _doubts(gpus: Sequence[GpuNvlinks]) -> Iterator[str]:
    """Yield GPUs of one model with different links: the text may lack lines, or a link its state."""
    most: dict[str | None, set[int]] = {}
    for gpu in gpus:
        most.setdefault(gpu.name, set()).update(link.index for link in gpu.links)
    for gpu in gpus:
        listed = {link.index for link in gpu.links}
        due = most[gpu.name] | set(range(max(listed, default=-1)))
        if listed and due - listed:
            numbers = ", ".join(map(str, sorted(due - listed)))
            yield f"{gpu.gpu} does not list its link {numbers}, so nothing is known of it"
