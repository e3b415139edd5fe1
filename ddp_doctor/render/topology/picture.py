"""A picture of each host: NUMA nodes as boxes, PCIe switches as frames, GPUs, NICs and NVLink; faults in red.

A function returns the <svg> element as a string, to be a file of its own or part of a page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.facts.node.topology import TopologyMatrix
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.render.topology.layout import MARGIN, Layout, Rect, lay_out
from ddp_doctor.render.topology.svg import Canvas, document
from ddp_doctor.render.topology.tree import Fabric, Machine, machine_of

#: More faulty pairs than this are listed below the picture instead of being drawn.
_MOST_PAIRS = 6
_MOST_TITLES = 4
#: The numbers of more bows than this would overlap; their line width shows them instead.
_MOST_LABELS = 8
_LEAST_WIDTH = 620.0
_TITLE, _LEGEND, _BAR = 34.0, 30.0, 28.0
_PIXELS_A_LETTER = 6.6


@dataclass(frozen=True)
class Picture:
    """One host, its name, and the findings about it."""

    title: str
    matrix: TopologyMatrix
    findings: tuple[Finding, ...] = ()

    def faults(self) -> tuple[Finding, ...]:
        """The findings that are drawn in red."""
        return tuple(finding for finding in self.findings if finding.severity.at_least(Severity.WARNING))


def topology_svg(pictures: Sequence[Picture]) -> str:
    """All hosts below each other in one <svg> element."""
    canvas = Canvas()
    width, top = _LEAST_WIDTH, 0.0
    for picture in pictures:
        drawing = _Drawing(canvas, picture, top)
        drawing.draw()
        width, top = max(width, drawing.layout.right), drawing.bottom
    return document(canvas, width, top + 8, "; ".join(picture.title for picture in pictures))


class _Drawing:
    def __init__(self, canvas: Canvas, picture: Picture, top: float) -> None:
        self.canvas = canvas
        self.picture = picture
        self.top = top
        self.machine: Machine = machine_of(picture.matrix)
        self.layout: Layout = lay_out(self.machine, picture.matrix.nics, top + _TITLE)
        self.bottom = self.layout.bottom
        self.faulty = {name for finding in picture.faults() for name in _blamed_devices(finding)}
        self.faulty_pairs = {pair: finding.code for finding in picture.faults() for pair in _pairs(finding)}
        self.labels: list[tuple[float, float, str, str]] = []  # of bows: drawn over all of them
        self.drawn_pairs = self.faulty_pairs if len(self.faulty_pairs) <= _MOST_PAIRS else {}

    def draw(self) -> None:
        """Everything, from back to front."""
        self.canvas.text(MARGIN, self.top + 22, self.picture.title, size=16, anchor="start", bold=True)
        self._boxes()
        self._between()
        self._inside()
        self._nvlinks()
        self._titles()
        self._legend()

    # --- NUMA nodes and PCIe ----------------------------------------------------------------------

    def _boxes(self) -> None:
        for box, place in self.layout.boxes:
            self.canvas.rect(place.x, place.y, place.width, place.height, "box", radius=10)
            self.canvas.text(place.x + 16, place.y + 22, box.title, size=14, anchor="start", bold=True)
            self.canvas.text(place.x + 16, place.y + 39, box.cpus, "muted", size=11, anchor="start")

    def _between(self) -> None:
        crossed = bool(self.faulty_pairs) and not self.drawn_pairs
        for (_, left), (_, peer), code in zip(
            self.layout.boxes, self.layout.boxes[1:], self.machine.between, strict=False
        ):
            far = bool(code) and link_codes.crosses_sockets(code)
            name = "wire" if not far else "bad" if crossed else "sys"
            y = left.y + 61
            self.canvas.line(left.right, y, peer.x, y, name)
            words = {"wire": "muted", "bad": "bad-text", "sys": "sys-text"}
            self.canvas.text((left.right + peer.x) / 2, y - 7, code, words[name], size=12, bold=True)

    def _inside(self) -> None:
        for x1, y1, x2, y2 in self.layout.wires:
            self.canvas.line(x1, y1, x2, y2, "wire")
        for bridge, place in self.layout.bars:
            name = "bridge" if bridge.count else "untold"
            self.canvas.rect(place.x, place.y, place.width, place.height, name, radius=4)
            self.canvas.text(place.middle, place.y + 15, _bar_words(bridge.count, place.width), "muted", size=11)
        for code, place in sorted(self.layout.frames, key=lambda frame: frame[0], reverse=True):  # PXB first
            self.canvas.rect(place.x, place.y, place.width, place.height, code.lower())
            self.canvas.text(place.x + 7, place.y + 12, code, "muted", size=10, anchor="start")
        for name, place in self.layout.devices.items():
            self._device(name, place)

    def _device(self, name: str, place: Rect) -> None:
        matrix = self.picture.matrix
        is_gpu = name in matrix.gpus
        label = "" if is_gpu else matrix.nics[name]
        label = "" if label == name else label
        self.canvas.open_group(_tooltip(matrix, name))
        self.canvas.rect(place.x, place.y, place.width, place.height, "gpu" if is_gpu else "nic")
        if name in self.faulty:
            self.canvas.rect(place.x - 2, place.y - 2, place.width + 4, place.height + 4, "bad", radius=8)
        middle = place.y + place.height / 2
        shown = _fitting(name, place.width)
        self.canvas.text(place.middle, middle + (-2 if label else 4), shown, size=13 if is_gpu else 12, bold=is_gpu)
        if label:
            self.canvas.text(place.middle, middle + 12, _fitting(label, place.width), "muted", size=10.5)
        self.canvas.close_group()

    # --- NVLink and faults ------------------------------------------------------------------------

    def _nvlinks(self) -> None:
        hanging = 0.0
        most = max((count for _, _, count in self.machine.bridged), default=1)
        for gpu, peer, count in self.machine.bridged:
            bad = self.drawn_pairs.get((gpu, peer))
            label = f"NV{count}" if len(self.machine.bridged) <= _MOST_LABELS else ""
            if bad is None:
                hanging = max(hanging, self._draw_arc(gpu, peer, "nvlink", label, 26, width=1.5 + 2.5 * count / most))
        for (gpu, peer), rule in self.drawn_pairs.items():
            code = self.picture.matrix.links[gpu].get(peer, "?")
            hanging = max(hanging, self._draw_arc(gpu, peer, "bad", f"{code} · {rule}", 46, width=3))
        for x, y, words, name in self.labels:
            self.canvas.text(x, y, words, name, size=12, bold=True)
        self.bottom = max(self.layout.bottom + 10, hanging + 12)
        if self.machine.fabric is not None:
            self._fabric(self.machine.fabric)

    def _draw_arc(self, gpu: str, peer: str, name: str, label: str, depth: float, *, width: float) -> float:
        """Returns how far down it hangs."""
        ends = self.layout.devices[gpu], self.layout.devices[peer]
        left, right = sorted(ends, key=lambda place: place.x)
        y = max(left.bottom, right.bottom)
        deep = (depth + 0.11 * (right.middle - left.middle) + self.layout.bottom - y) / 0.75
        self.canvas.arc(left.middle, right.middle, y, deep, name, width=width)
        low = y + 0.75 * deep
        words = "bad-text halo" if name == "bad" else "text halo"
        if label:
            self.labels.append(((left.middle + right.middle) / 2, low + 15, label, words))
        return low + (8 if label else 0)

    def _fabric(self, fabric: Fabric) -> None:
        places = {gpu: self.layout.devices[gpu] for gpu in fabric.links}
        left = min(place.x for place in places.values())
        right = max(place.right for place in places.values())
        most, lowest = max(fabric.links.values()), max(place.bottom for place in places.values())
        top = self.bottom + 14
        for gpu, place in places.items():
            short = fabric.links[gpu] < most
            if place.bottom == lowest:
                self.canvas.line(
                    place.middle, place.bottom, place.middle, top, "bad" if gpu in self.faulty else "nvlink"
                )
            if short:
                words = "bad-text halo" if gpu in self.faulty else "muted halo"
                self.canvas.text(place.middle + 6, top - 5, f"NV{fabric.links[gpu]}", words, anchor="start", bold=True)
        self.canvas.rect(left, top, right - left, _BAR, "fabric")
        kind = "NVSwitch" if fabric.switched else "NVLink"
        least = min(fabric.links.values())
        codes = f"NV{most}" if least == most else f"NV{least} to NV{most}"
        words = f"{kind}: all {len(places)} GPUs reach each other over {codes}"
        shorter = f"{kind} {codes}"
        fits = _PIXELS_A_LETTER * len(words) < right - left - 16
        self.canvas.text((left + right) / 2, top + 19, words if fits else shorter, "on-fabric", size=13, bold=True)
        self.bottom = top + _BAR + 12

    # --- words below ------------------------------------------------------------------------------

    def _titles(self) -> None:
        width = max(self.layout.right, _LEAST_WIDTH) - 2 * MARGIN
        faults = self.picture.faults()
        lines = [
            line
            for finding in faults[:_MOST_TITLES]
            for line in _wrapped(f"{finding.code} {finding.title}", int(width / _PIXELS_A_LETTER))
        ]
        if len(faults) > _MOST_TITLES:
            lines.append(f"and {len(faults) - _MOST_TITLES} more findings")
        for line in lines:
            self.bottom += 18
            self.canvas.text(MARGIN, self.bottom, line, "bad-text", size=12, anchor="start")
        self.bottom += 6 if lines else 0

    def _legend(self) -> None:
        x, y = MARGIN, self.bottom + 12
        limit = max(self.layout.right, _LEAST_WIDTH) - MARGIN
        for name, words in self._legend_entries():
            width = 26 + _PIXELS_A_LETTER * 0.93 * len(words) + 14
            if x + width > limit and x > MARGIN:
                x, y = MARGIN, y + 20
            self._sample(name, x, y)
            self.canvas.text(x + 26, y + 9, words, "muted", size=11, anchor="start")
            x += width
        self.bottom = y + _LEGEND

    def _legend_entries(self) -> Iterator[tuple[str, str]]:
        frames = {code for code, _ in self.layout.frames}
        yield "gpu", "GPU"
        if self.picture.matrix.nics:
            yield "nic", "NIC"
        if "PIX" in frames:
            yield "pix", "below one PCIe bridge (PIX)"
        if "PXB" in frames:
            yield "pxb", "below several (PXB)"
        counts = {bridge.count for bridge, _ in self.layout.bars}
        if 0 in counts:
            yield "untold", "PCIe paths not all told"
        if any("SYS" in code or "SOC" in code for code in self.machine.between):
            yield "sys", "between NUMA nodes (SYS)"
        if self.machine.bridged or self.machine.fabric:
            told_by_width = len(self.machine.bridged) > _MOST_LABELS
            yield "nvlink", "NVLink" + (" (thicker: more links)" if told_by_width else "")
        if self.picture.faults():
            yield "bad", "finding"

    def _sample(self, name: str, x: float, y: float) -> None:
        if name in {"sys", "nvlink", "bad"}:
            self.canvas.line(x, y + 5, x + 20, y + 5, name)
        else:
            self.canvas.rect(x, y - 1, 20, 12, name, radius=3)


def _blamed_devices(finding: Finding) -> Iterator[str]:
    for culprit in finding.culprits:
        if culprit.kind in {"gpu", "nic"} and culprit.name:
            yield culprit.name


def _pairs(finding: Finding) -> Iterator[tuple[str, str]]:
    for culprit in finding.culprits:
        ends = (culprit.name or "").split("-")
        if culprit.kind == "pair" and len(ends) == 2 and all(end.startswith("GPU") for end in ends):
            yield ends[0], ends[1]


def _bar_words(count: int, width: float) -> str:
    words = {0: "host bridges, not told which", 1: "host bridge"}.get(count, f"{count} host bridges")
    return words if _PIXELS_A_LETTER * len(words) < width else words.partition(",")[0]


def _tooltip(matrix: TopologyMatrix, name: str) -> str:
    if name not in matrix.gpus:
        return f"{name} {matrix.nics[name]}"
    code, near = matrix.nearest_hcas(name)
    return f"{name}, nearest NIC {', '.join(near)} ({code})" if near else name


def _fitting(text: str, width: float) -> str:
    most = int((width - 6) / 6.2)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _wrapped(text: str, letters: int) -> list[str]:
    from textwrap import wrap

    return wrap(text, max(letters, 40))
