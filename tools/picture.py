"""Write the pictures of the README: ``python -m tools.picture``, called by ``make picture``.

A recording of two lab hosts, with one of their two networks slow, is replayed as on a terminal of 100 columns and drawn
on a light and on a dark background. The pictures are committed. tests/test_documents.py fails if ddp-doctor prints
something else.
"""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

COMMAND = ("replay", "tests/recordings/connectivity/slow-network-and-remedy-proved.json")
COLUMNS = 100
#: Makes ddp-doctor treat a pipe as a terminal.
TERMINAL = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
#: GitHub shows only the picture itself, which cannot load anything else.
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
#: Background, text, and the eight colors of a terminal, dark enough for a white background.
_LIGHT = (
    (255, 255, 255),
    (36, 41, 47),
    [
        (36, 41, 47),
        (164, 14, 38),
        (17, 99, 41),
        (125, 78, 0),
        (9, 105, 218),
        (130, 80, 223),
        (27, 124, 131),
        (110, 119, 129),
    ],
)


def pictures(printed: str) -> dict[str, str]:
    """Return both pictures of a terminal's output, by file name."""
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME, TerminalTheme
    from rich.text import Text

    made = {}
    for name, theme in (("light", TerminalTheme(*_LIGHT)), ("dark", SVG_EXPORT_THEME)):
        console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True, highlight=False)
        console.print(Text.from_ansi(f"$ ddp-doctor {' '.join(COMMAND)}\n{printed}".rstrip()))
        svg = console.export_svg(title="ddp-doctor", theme=theme, unique_id=f"doctor-{name}")
        svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
        svg = re.sub(r"font-family: [^;]+;", f"font-family: {_FONT};", svg)
        made[f"finding-{name}.svg"] = re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE).rstrip() + "\n"
    return made


def main() -> None:
    """Replay the recording and write the pictures."""
    command = (sys.executable, "-m", "ddp_doctor", *COMMAND)
    env = {**os.environ, **TERMINAL}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    PICTURES.mkdir(exist_ok=True)
    for name, svg in pictures(done.stdout).items():
        (PICTURES / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
