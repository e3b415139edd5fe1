"""A canvas for pictures: SVG elements, with colors by class for light and dark."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape

from ddp_doctor.render.text import plain

_FONT = "font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif"


class Canvas:
    """Elements of SVG in drawing order, with every text escaped.

    ``name`` is the class of the picture, ``colors`` the rules of each class within it: in light, and in dark.
    """

    def __init__(self, name: str, colors: Mapping[str, tuple[str, str]]) -> None:
        self.name = name
        self.colors = colors
        self.elements: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, name: str, *, radius: float = 6.0) -> None:
        """Draw a rectangle of class ``name``."""
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
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
        turned: int = 0,
    ) -> None:
        """Draw one line of any text, rotated by ``turned`` degrees."""
        weight = ' font-weight="600"' if bold else ""
        weight += f' transform="rotate({turned} {x:.1f} {y:.1f})"' if turned else ""
        place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"{weight}'
        self.elements.append(f'<text class="{name}" {place}>{escape(plain(text))}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, name: str) -> None:
        """Draw a straight line."""
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.elements.append(f'<line class="{name}" {ends}/>')

    def arc(self, x1: float, x2: float, y: float, depth: float, name: str, *, width: float) -> None:
        """Draw an arc below two points of the same height."""
        low = y + depth
        path = f"M{x1:.1f},{y:.1f} C{x1:.1f},{low:.1f} {x2:.1f},{low:.1f} {x2:.1f},{y:.1f}"
        self.elements.append(f'<path class="{name}" d="{path}" style="stroke-width:{width:g}"/>')

    @contextmanager
    def group(self, tooltip: str) -> Iterator[None]:
        """Show ``tooltip`` under the pointer for the elements drawn in this block."""
        self.elements.append(f"<g><title>{escape(plain(tooltip))}</title>")
        yield
        self.elements.append("</g>")

    def document(self, width: float, height: float, label: str, description: str = "") -> str:
        """Return the complete picture as one <svg> element, which is also a complete file."""
        light, dark = (
            "".join(f".{self.name} .{name}{{{rules[scheme]}}}" for name, rules in self.colors.items())
            for scheme in (0, 1)
        )
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{self.name}" role="img" width="{width:.0f}"'
            f' height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
            f' style="max-width:100%;height:auto;{_FONT}">'
        )
        head = (
            opening,
            f"<title>{escape(plain(label))}</title>",
            *([f"<desc>{escape(plain(description))}</desc>"] if description else []),
            f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>",
            f'<rect class="ground" width="{width:.0f}" height="{height:.0f}"/>',
        )
        return "\n".join((*head, *self.elements, "</svg>\n"))
