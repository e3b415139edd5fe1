"""Writes SVG: every text escaped, colours by class for light and dark, nothing loaded from elsewhere."""

from collections.abc import Mapping
from html import escape

from ddp_doctor.render.text import plain

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
_FONT = "font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif"


class Canvas:
    """Elements in the order they are drawn, moved down by ``top``."""

    def __init__(self, top: float = 0.0) -> None:
        self.top = top
        self.elements: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, name: str, *, radius: float = 6.0) -> None:
        """A rectangle of class ``name``."""
        place = f'x="{x:.1f}" y="{y + self.top:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.elements.append(f'<rect class="{name}" {place} rx="{radius:g}"/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        name: str = "text",
        *,
        size: float = 12,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """One line of text, whatever it holds."""
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:.1f}" y="{y + self.top:.1f}" font-size="{size:g}" text-anchor="{anchor}"{weight}'
        self.elements.append(f'<text class="{name}" {place}>{escaped(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, name: str) -> None:
        """A straight line."""
        ends = f'x1="{x1:.1f}" y1="{y1 + self.top:.1f}" x2="{x2:.1f}" y2="{y2 + self.top:.1f}"'
        self.elements.append(f'<line class="{name}" {ends}/>')

    def arc(self, x1: float, x2: float, y: float, depth: float, name: str, *, width: float | None = None) -> None:
        """A bow that hangs from two points of one height."""
        low, high = y + self.top + depth, y + self.top
        path = f"M{x1:.1f},{high:.1f} C{x1:.1f},{low:.1f} {x2:.1f},{low:.1f} {x2:.1f},{high:.1f}"
        style = f' style="stroke-width:{width:g}"' if width is not None else ""
        self.elements.append(f'<path class="{name}" d="{path}"{style}/>')

    def open_group(self, tooltip: str) -> None:
        """What follows shows ``tooltip`` under the pointer, until ``close_group``."""
        self.elements.append(f"<g><title>{escaped(tooltip)}</title>")

    def close_group(self) -> None:
        """Ends ``open_group``."""
        self.elements.append("</g>")


def document(canvas: Canvas, width: float, height: float, label: str) -> str:
    """The whole picture as one <svg> element, which is also a complete file."""
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ddp-topology" role="img" width="{width:.0f}"'
        f' height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' style="max-width:100%;height:auto;{_FONT}">'
    )
    ground = f'<rect class="ground" width="{width:.0f}" height="{height:.0f}"/>'
    head = (opening, f"<title>{escaped(label)}</title>", f"<style>{_style()}</style>", ground)
    return "\n".join((*head, *canvas.elements, "</svg>\n"))


def _style() -> str:
    light = "".join(f".ddp-topology .{name}{{{rules[0]}}}" for name, rules in _COLOURS.items())
    dark = "".join(f".ddp-topology .{name}{{{rules[1]}}}" for name, rules in _COLOURS.items())
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"


def escaped(text: str) -> str:
    """Text that can neither end its element nor break the document."""
    return escape(plain(text).replace("\ufffe", "?").replace("\uffff", "?"))
