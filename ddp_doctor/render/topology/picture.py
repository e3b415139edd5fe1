"""A picture of each host: NUMA nodes as boxes, PCIe switches as frames, GPUs, NICs and NVLink; faults in red.

A function returns the <svg> element as a string, for a separate file or as part of a page. Colors are by class, for
light and dark, and no other file is loaded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from ddp_doctor.facts.node.topology import TopologyMatrix
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.render.canvas import Canvas
from ddp_doctor.render.topology.layout import MARGIN, Rect, lay_out
from ddp_doctor.render.topology.tree import Fabric, machine_of

#: By their number; 0 is unknown.
_BRIDGES = {0: "unknown host bridges", 1: "host bridge"}
#: More faulty pairs than this are listed below the picture instead of being drawn.
_MOST_PAIRS = 6
_MOST_TITLES = 4
#: The numbers of more arcs than this would overlap; their line width shows them instead.
_MOST_LABELS = 8
_LEAST_WIDTH = 620.0
_TITLE, _LEGEND, _BAR = 34.0, 30.0, 28.0
_PIXELS_A_LETTER = 6.6

#: Class -> (light, dark); text and shapes of no class stay black.
_COLOURS: Mapping[str, tuple[str, str]] = {
    "ground": ("fill:#ffffff", "fill:#0d1117"),
    "text": ("fill:#1f2328", "fill:#e6edf3"),
    "muted": ("fill:#57606a", "fill:#9198a1"),
    "box": ("fill:#f6f8fa;stroke:#8c959f", "fill:#161b22;stroke:#656c76"),
    "bridge": ("fill:#d8dee4;stroke:#8c959f", "fill:#30363d;stroke:#656c76"),
    "untold": ("fill:none;stroke:#8c959f;stroke-dasharray:5 4", "fill:none;stroke:#656c76;stroke-dasharray:5 4"),
    "pix": ("fill:#ffffff;stroke:#57606a", "fill:#0d1117;stroke:#9198a1"),
    "pxb": ("fill:none;stroke:#57606a;stroke-dasharray:2 3", "fill:none;stroke:#9198a1;stroke-dasharray:2 3"),
    "wire": ("fill:none;stroke:#8c959f;stroke-width:1.5", "fill:none;stroke:#656c76;stroke-width:1.5"),
    "gpu": ("fill:#c6efce;stroke:#1a7f37", "fill:#14401f;stroke:#3fb950"),
    "nic": ("fill:#cfe8ff;stroke:#0969da", "fill:#0f2d4f;stroke:#4493f8"),
    "nvlink": ("fill:none;stroke:#1a7f37;stroke-width:3", "fill:none;stroke:#3fb950;stroke-width:3"),
    "fabric": ("fill:#1a7f37;stroke:#116329", "fill:#238636;stroke:#3fb950"),
    "halo": (
        "paint-order:stroke;stroke:#ffffff;stroke-width:5px",
        "paint-order:stroke;stroke:#0d1117;stroke-width:5px",
    ),
    "on-fabric": ("fill:#ffffff", "fill:#ffffff"),
    "sys": ("fill:none;stroke:#bc4c00;stroke-width:3", "fill:none;stroke:#f0883e;stroke-width:3"),
    "sys-text": ("fill:#bc4c00", "fill:#f0883e"),
    "bad": ("fill:none;stroke:#cf222e;stroke-width:3", "fill:none;stroke:#ff7b72;stroke-width:3"),
    "bad-text": ("fill:#cf222e", "fill:#ff7b72"),
}


@dataclass(frozen=True)
class Picture:
    """A host, its name, and the findings about it."""

    title: str
    matrix: TopologyMatrix
    findings: tuple[Finding, ...] = ()

    def faults(self) -> tuple[Finding, ...]:
        """Return the findings that are drawn in red."""
        return tuple(finding for finding in self.findings if finding.severity.at_least(Severity.WARNING))


def topology_svg(pictures: Sequence[Picture]) -> str:
    """Return all hosts below each other in one <svg> element."""
    canvas = Canvas("ddp-topology", _COLOURS)
    width, top = _LEAST_WIDTH, 0.0
    for picture in pictures:
        drawing = _Drawing(canvas, picture, top)
        drawing.draw()
        width, top = max(width, drawing.layout.right), drawing.bottom
    return canvas.document(width, top + 8, "; ".join(picture.title for picture in pictures))


class _Drawing:
    def __init__(self, canvas: Canvas, picture: Picture, top: float) -> None:
        self.canvas = canvas
        self.picture = picture
        self.top = top
        self.machine = machine_of(picture.matrix)
        self.layout = lay_out(self.machine, picture.matrix.nics, top + _TITLE)
        self.bottom = self.layout.bottom
        blamed = [(culprit, finding.code) for finding in picture.faults() for culprit in finding.culprits]
        self.faulty = {culprit.name for culprit, _ in blamed if culprit.kind in {"gpu", "nic"} and culprit.name}
        self.faulty_pairs: dict[tuple[str, str], str] = {}
        for culprit, code in blamed:
            ends = (culprit.name or "").split("-")
            if culprit.kind == "pair" and len(ends) == 2 and all(end.startswith("GPU") for end in ends):
                self.faulty_pairs[ends[0], ends[1]] = code
        self.labels: list[tuple[float, float, str, str]] = []  # of arcs: drawn over all of them
        self.drawn_pairs = self.faulty_pairs if len(self.faulty_pairs) <= _MOST_PAIRS else {}

    def draw(self) -> None:
        """Draw everything, from back to front."""
        self.canvas.text(MARGIN, self.top + 22, self.picture.title, size=16, anchor="start", bold=True)
        for box, place in self.layout.boxes:
            self.canvas.rect(place.x, place.y, place.width, place.height, "box", radius=10)
            self.canvas.text(place.x + 16, place.y + 22, box.title, size=14, anchor="start", bold=True)
            self.canvas.text(place.x + 16, place.y + 39, box.cpus, "muted", size=11, anchor="start")
        self._between()
        self._inside()
        self._nvlinks()
        self._titles()
        self._legend()

    # --- NUMA nodes and PCIe ----------------------------------------------------------------------

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
            words = _BRIDGES.get(bridge.count, f"{bridge.count} host bridges")
            fits = _PIXELS_A_LETTER * len(words) < place.width
            self.canvas.text(place.middle, place.y + 15, words if fits else words.partition(",")[0], "muted", size=11)
        for code, place in sorted(self.layout.frames, key=lambda frame: frame[0], reverse=True):  # PXB first
            self.canvas.rect(place.x, place.y, place.width, place.height, code.lower())
            self.canvas.text(place.x + 7, place.y + 12, code, "muted", size=10, anchor="start")
        for name, place in self.layout.devices.items():
            self._device(name, place)

    def _device(self, name: str, place: Rect) -> None:
        matrix = self.picture.matrix
        is_gpu = name in matrix.gpus
        if is_gpu:
            label, (code, near) = "", matrix.nearest_hcas(name)
            tooltip = f"{name}, nearest NIC {', '.join(near)} ({code})" if near else name
        else:
            label, tooltip = matrix.nics[name], f"{name} {matrix.nics[name]}"
            label = "" if label == name else label
        with self.canvas.group(tooltip):
            self.canvas.rect(place.x, place.y, place.width, place.height, "gpu" if is_gpu else "nic")
            if name in self.faulty:
                self.canvas.rect(place.x - 2, place.y - 2, place.width + 4, place.height + 4, "bad", radius=8)
            middle = place.y + place.height / 2
            shown = _fitting(name, place.width)
            self.canvas.text(place.middle, middle + (-2 if label else 4), shown, size=13 if is_gpu else 12, bold=is_gpu)
            if label:
                self.canvas.text(place.middle, middle + 12, _fitting(label, place.width), "muted", size=10.5)

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
        """Draw an arc and return how far down it extends."""
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
        letters = max(int(width / _PIXELS_A_LETTER), 40)
        faults = self.picture.faults()
        titles = [f"{finding.code} {finding.title}" for finding in faults[:_MOST_TITLES]]
        lines = [line for title in titles for line in wrap(title, letters)]
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
            if name in {"sys", "nvlink", "bad"}:
                self.canvas.line(x, y + 5, x + 20, y + 5, name)
            else:
                self.canvas.rect(x, y - 1, 20, 12, name, radius=3)
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


def _fitting(text: str, width: float) -> str:
    most = int((width - 6) / 6.2)
    return text if len(text) <= most else f"{text[: most - 1]}…"
