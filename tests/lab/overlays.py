"""Differences of one host from the others without installing anything: versions and clocks."""

import importlib.metadata
import importlib.util
import re
import subprocess
from pathlib import Path

CLOCK, MISDEEDS = (Path(__file__).with_name(name) for name in ("skewed_clock.c", "misdeeds.c"))


def other_version(folder: Path, package: str, version: str) -> Path:
    """Return a directory for PYTHONPATH with the installed ``package`` and another version.

    All its files are links, except the file with ``__version__``, and its metadata.
    """
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    copy = folder / package
    copy.mkdir(parents=True)
    holder = next(
        installed / name
        for name in ("version.py", "__init__.py")
        if re.search(r"^__version__\b", _text(installed / name), re.MULTILINE)
    )
    for path in installed.iterdir():
        if path != holder and path.name != "__pycache__":
            (copy / path.name).symlink_to(path)
    changed = re.sub(r"(?m)^(__version__\b[^=]*=).*", rf'\1 "{version}"', _text(holder))
    (copy / holder.name).write_text(changed)
    _metadata(folder, package, version)
    return folder


def skewed_clock(folder: Path, seconds: int) -> dict[str, str]:
    """Return the environment that shifts the wall clock by ``seconds``; needs the C compiler."""
    return {**_preloaded(folder, CLOCK), "SKEW_S": str(seconds)}


def misdeed(folder: Path, what: str, one_in: int) -> dict[str, str]:
    """Return the environment that makes ranks, or 1 in ``one_in``, misbehave when they send; needs the C compiler."""
    return {**_preloaded(folder, MISDEEDS), "MISDEED": what, "MISDEED_ONE_IN": str(one_in)}


def _preloaded(folder: Path, source: Path) -> dict[str, str]:
    folder.mkdir()
    library = folder / "preloaded.so"
    subprocess.run(("cc", "-shared", "-fPIC", "-O2", "-o", library, source), check=True, capture_output=True)
    return {"LD_PRELOAD": str(library)}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _metadata(folder: Path, package: str, version: str) -> None:
    written = importlib.metadata.distribution(package.replace("_", "-")).read_text("METADATA") or ""
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(re.sub(r"(?m)^Version: .*", f"Version: {version}", written, count=1))
