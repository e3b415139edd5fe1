"""Make the single file, for nodes with only Python: ``python -m tools.single_file [FOLDER]``.

It contains ddp-doctor and the packages that it needs, as installed in the environment that runs this module. It works
with that minor version of Python, on that processor and C library. torch is not included: ranks use the torch of their
Python. docs/adr/0015-one-file-for-bare-nodes.md explains this design.
"""

import hashlib
import importlib.util
import io
import marshal
import platform
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from hatchling.build import build_wheel
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ddp_doctor import __version__

ROOT = Path(__file__).parent.parent
#: rich needs them to color code and render Markdown. ddp-doctor does neither, and they would be a third of the file.
#: py-spy is a separate program, not a package that a file can contain.
LEFT_OUT = frozenset({"pygments", "markdown-it-py", "mdurl", "py-spy"})
#: The same content gives the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)
_FLAG_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: a compiled module that is not compared with its source


def make(wheel: Path, folder: Path) -> Path:
    """Make the single file of ddp-doctor from a wheel, in this directory."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}
        (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
        requires = metadata.PathDistribution(zipfile.Path(archive, f"{info}/")).requires
    for package in _needed(requires):
        files |= _of_package(package)
    files = dict(sorted(files.items()))
    compiled = dict(_compiled(name, source) for name, source in files.items() if name.endswith(".py"))
    packages = io.BytesIO()
    with zipfile.ZipFile(packages, "w") as archive:
        for name, content in {**files, **compiled}.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
    release = f"{__version__}-{hashlib.sha256(packages.getvalue()).hexdigest()[:16]}"
    megabytes = sum(map(len, (*files.values(), *compiled.values()))) // 1_000_000 + 1
    made_for = f"Python {platform.python_version().rpartition('.')[0]} on {platform.machine()}"
    call = f"main({release!r}, {made_for!r}, {EXTENSION_SUFFIXES[0]!r}, {megabytes})"
    start = Path(__file__).with_name("single_file_start.py").read_text("utf-8")
    tag = f"{sys.implementation.cache_tag.replace('cpython-', 'cp')}-{sys.platform}_{platform.machine()}"
    target = folder / f"ddp-doctor-{__version__}-{tag}.pyz"
    with target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w") as archive:  # two members, because Python lists all members before it starts
            archive.writestr(zipfile.ZipInfo("__main__.py", _DATE), f"{start}\n\n{call}\n")
            archive.writestr(zipfile.ZipInfo("packages.zip", _DATE), packages.getvalue())
    target.chmod(0o755)
    return target


def _needed(requires: Iterable[str] | None) -> set[str]:
    """Return the packages that these requirements mean in this environment, without extras, and their requirements."""
    needs = map(Requirement, requires or ())
    direct = {canonicalize_name(need.name) for need in needs if not need.marker or need.marker.evaluate({"extra": ""})}
    direct -= LEFT_OUT
    return direct.union(*(_needed(metadata.requires(name)) for name in direct))


def _of_package(name: str) -> dict[str, bytes]:
    """Return the files of an installed package, with its license."""
    wanted = [
        file
        for file in metadata.files(name) or ()
        if not {"..", "__pycache__", "tests"} & {*file.parts} and file.suffix != ".pyi" and file.name != "RECORD"
    ]
    return {file.as_posix(): Path(str(file.locate())).read_bytes() for file in wanted}


def _compiled(name: str, source: bytes) -> tuple[str, bytes]:
    """Return a module as Python caches it next to its source, so that the node does not compile it."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    head = importlib.util.MAGIC_NUMBER + _FLAG_UNCHECKED + importlib.util.source_hash(source)
    return importlib.util.cache_from_source(name), head + marshal.dumps(code)


def main(folder: Path = ROOT / "dist") -> None:
    """Build a wheel of this checkout and make the single file from it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as built:
        target = make(Path(built) / build_wheel(built), folder)
    sys.stdout.write(f"{target} ({target.stat().st_size / 1e6:.1f} MB)\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
