"""The positions of all parts of a machine in its picture, in pixels: boxes side by side, GPUs on one line.

┌ NUMA node 0 ─────────────┐          ┌ NUMA node 1 ──────────┐
│ [     host bridge      ] │── SYS ── │ [     host bridge   ] │
│  ┌ PIX ───┐              │          │  ┌ PIX ───┐           │
│  │ NIC0   │  NIC1        │          │  │ NIC2   │           │
│  │ GPU0   │  GPU1        │          │  │ GPU2   │  GPU3     │
│  └────────┘              │          │  └────────┘           │
└──────────────────────────┘          └───────────────────────┘
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from ddp_doctor.render.topology.tree import Box, Bridge, Group, Machine

GPU_WIDTH, GPU_HEIGHT, NIC_HEIGHT, GAP = 68.0, 38.0, 34.0, 8.0
LABEL, PAD, BAR, WIRE, MARGIN, BETWEEN = 16.0, 8.0, 22.0, 16.0, 24.0, 64.0
TITLE = 50.0  # of a box: two lines
_GUTTER = 14.0  # for the wire next to a column of NICs
_MOST_GPUS_IN_A_ROW = 12
_MOST_NIC_ROWS = 5
_LEAST_BAR = 92.0


@dataclass(frozen=True)
class Rect:
    """A rectangle of the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The horizontal middle."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y + self.height

    @property
    def right(self) -> float:
        """The right edge."""
        return self.x + self.width


@dataclass
class Layout:
    """Places by name; ``frames`` are PCIe switches with their code, ``wires`` lines of x1, y1, x2, y2."""

    boxes: list[tuple[Box, Rect]] = field(default_factory=list)
    bars: list[tuple[Bridge, Rect]] = field(default_factory=list)
    frames: list[tuple[str, Rect]] = field(default_factory=list)
    devices: dict[str, Rect] = field(default_factory=dict)
    wires: list[tuple[float, float, float, float]] = field(default_factory=list)
    right: float = 0.0
    bottom: float = 0.0


@dataclass(frozen=True)
class _Sizes:
    """Sizes shared by all boxes of one host, so that their GPUs are on one line."""

    nic_width: float
    nic_rows: int
    gpu_rows: int
    depth: int  # of frames within frames

    @property
    def chips(self) -> float:
        """The height from the top of the tiles to the first chip."""
        return LABEL * self.depth

    @property
    def gpus(self) -> float:
        """The height from the top of the tiles to the first row of GPUs."""
        return self.chips + self.nic_rows * (NIC_HEIGHT + GAP)

    @property
    def tiles(self) -> float:
        """The height of all tiles."""
        return self.gpus + self.gpu_rows * (GPU_HEIGHT + GAP) - GAP + PAD * self.depth


def lay_out(machine: Machine, labels: Mapping[str, str], top: float) -> Layout:
    """Lay out one host below ``top``; ``labels`` are the second lines of its NICs."""
    sizes = _sizes(machine, labels)
    layout = Layout()
    x = MARGIN
    height = TITLE + BAR + WIRE + sizes.tiles + 2 * PAD
    for box in machine.boxes:
        width = _Boxed(layout, sizes, x, top + TITLE).place(box)
        width = max(width, 9.4 * len(box.title) + 4 * PAD, 6.6 * len(box.cpus) + 4 * PAD)
        layout.boxes.append((box, Rect(x, top, width, height)))
        x += width + BETWEEN
    layout.right = x - BETWEEN + MARGIN
    layout.bottom = top + height
    return layout


def _sizes(machine: Machine, labels: Mapping[str, str]) -> _Sizes:
    groups = [group for box in machine.boxes for bridge in box.bridges for group in bridge.groups]
    longest = max((len(text) for text in labels.values()), default=6)
    nic_width = min(max(6.4 * longest + 12, 60.0), 150.0)
    rows = max((_nic_rows(group, nic_width) for group in groups if group.gpus), default=0)
    gpu_rows = max((ceil(len(group.gpus) / _MOST_GPUS_IN_A_ROW) for group in groups), default=0)
    alone = [
        sum(len(group.nics) for bridge in box.bridges for group in bridge.groups if not group.gpus)
        for box in machine.boxes
    ]
    most_alone = max(alone, default=0)
    wanted = min(ceil(most_alone / 2) if most_alone > 2 else most_alone, _MOST_NIC_ROWS)
    depth = max((_frame_depth(group) for group in groups), default=0)
    return _Sizes(nic_width, max(rows, wanted - gpu_rows), gpu_rows, depth)


def _frame_depth(group: Group) -> int:
    return max((_frame_depth(part) for part in group.parts), default=0) + (1 if group.code else 0)


def _nic_rows(group: Group, nic_width: float) -> int:
    if group.parts:
        return max(_nic_rows(part, nic_width) for part in group.parts)
    return ceil(len(group.nics) / _nic_columns(group, nic_width)) if group.nics else 0


def _nic_columns(group: Group, nic_width: float) -> int:
    """Return the number of columns above the GPUs, or more if there would be too many rows."""
    over = int((_gpus_width(group) + GAP) // (nic_width + GAP))
    return max(1, over, ceil(len(group.nics) / _MOST_NIC_ROWS))


def _gpus_width(group: Group) -> float:
    in_a_row = min(len(group.gpus), _MOST_GPUS_IN_A_ROW)
    return in_a_row * (GPU_WIDTH + GAP) - GAP if in_a_row else 0.0


@dataclass
class _Boxed:
    """Places the contents of one box, starting at ``x``; ``top`` is the top of its host bridges."""

    layout: Layout
    sizes: _Sizes
    x: float
    top: float

    def place(self, box: Box) -> float:
        """Place the box and return its width."""
        x = self.x + 2 * PAD
        for bridge in box.bridges:
            start = x
            ends = [x]
            for group in bridge.groups:
                if group.gpus or group.code:  # a switch, or a GPU without one, with the wire up to its host bridge
                    top = self.top + BAR + WIRE
                    width = self._group(group, x, top, depth=0)
                    end = top if group.code else top + self.sizes.gpus
                    self.layout.wires.append((x + width / 2, self.top + BAR, x + width / 2, end))
                    ends.append(x + width)
                    x += width + GAP
            loose = [nic for group in bridge.groups if not group.gpus and not group.code for nic in group.nics]
            if loose:
                x = self._stack(loose, x)
                ends.append(x - GAP)
            width = max(max(ends) - start, _LEAST_BAR)
            self.layout.bars.append((bridge, Rect(start, self.top, width, BAR)))
            x = start + width + 2 * GAP
        return x - 2 * GAP - self.x + 2 * PAD

    def _group(self, group: Group, x: float, top: float, depth: int) -> float:
        if not group.code:
            return self._chips(group, x)
        inner = x + PAD
        if group.parts:
            for part in group.parts:
                inner += self._group(part, inner, top + LABEL, depth + 1) + GAP
            inner -= GAP
        else:
            inner += self._chips(group, inner)
        width = max(inner + PAD - x, 44.0)
        bottom = self.top + BAR + WIRE + self.sizes.tiles - PAD * depth
        self.layout.frames.append((group.code, Rect(x, top, width, bottom - top)))
        return width

    def _chips(self, group: Group, x: float) -> float:
        """Place NICs above GPUs and return the width."""
        nic_width, base = self.sizes.nic_width, self.top + BAR + WIRE
        columns = _nic_columns(group, nic_width)
        if not group.gpus:
            columns = max(1, ceil(len(group.nics) / max(self.sizes.nic_rows + self.sizes.gpu_rows, 1)))
        nics = min(columns, len(group.nics)) * (nic_width + GAP) - GAP if group.nics else 0.0
        width = max(nics, _gpus_width(group))
        start = x + (width - nics) / 2
        for index, nic in enumerate(group.nics):
            y = base + self.sizes.chips + index // columns * (NIC_HEIGHT + GAP)
            place = Rect(start + index % columns * (nic_width + GAP), y, nic_width, NIC_HEIGHT)
            self.layout.devices[nic] = place
        start = x + (width - _gpus_width(group)) / 2
        for index, gpu in enumerate(group.gpus):
            row, column = divmod(index, _MOST_GPUS_IN_A_ROW)
            y = base + self.sizes.gpus + row * (GPU_HEIGHT + GAP)
            self.layout.devices[gpu] = Rect(start + column * (GPU_WIDTH + GAP), y, GPU_WIDTH, GPU_HEIGHT)
        return width

    def _stack(self, nics: Sequence[str], x: float) -> float:
        """Place NICs without a common bridge in columns, each with a wire; return the x of the next column."""
        base = self.top + BAR + WIRE + self.sizes.chips
        rows = max(self.sizes.nic_rows + self.sizes.gpu_rows, 1)
        for start in range(0, len(nics), rows):
            last = base
            for row, nic in enumerate(nics[start : start + rows]):
                place = Rect(x + _GUTTER, base + row * (NIC_HEIGHT + GAP), self.sizes.nic_width, NIC_HEIGHT)
                self.layout.devices[nic] = place
                last = place.y + NIC_HEIGHT / 2
                self.layout.wires.append((x + 4, last, x + _GUTTER, last))
            self.layout.wires.append((x + 4, self.top + BAR, x + 4, last))
            x += _GUTTER + self.sizes.nic_width + GAP
        return x
