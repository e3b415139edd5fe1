"""A hundred training scripts of 200 to 400 lines, put together from the public ones among the samples."""

import re
from pathlib import Path

from tests.features.lint.documents import PUBLIC


def write_hundred(folder: Path) -> list[Path]:
    """Write a hundred scripts and return their paths."""
    texts = [script.text for script in PUBLIC]
    paths = []
    for number in range(100):
        parts: list[str] = []
        while sum(part.count("\n") for part in parts) < 200:
            text = texts[(number + 7 * len(parts)) % len(texts)]
            parts.append(re.sub(r"\bmain\b", f"main{len(parts)}", text))
        paths.append(folder / f"train{number}.py")
        paths[-1].write_text("\n".join(parts))
    return paths
