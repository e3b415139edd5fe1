"""Build a release and try each package in a clean environment: ``python -m tools.release``, part of ``make release``.

build/release then holds the sdist, the wheel that pip builds from it, the single file of that wheel, and the site and
manual page that `make docs` left in build. Nothing is published: the last lines describe how to do it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from ddp_doctor import __version__
from tools import single_file

ROOT = Path(__file__).parent.parent
#: Built by `make docs`.
SITE, MANUAL = ROOT / "build/site", ROOT / "build/ddp-doctor.1"
TARGET = ROOT / "build/release"
_SCRIPT = "import torch\n\nmodel = torch.nn.DataParallel(torch.nn.Linear(8, 8))\n"
#: Commands to try, their exit codes, and a pattern of their output. An unhealthy machine is not a fault of the package.
_COMMANDS = (
    (("--version",), (0,), f"^ddp-doctor {re.escape(__version__)}$"),
    (("prolog",), (0, 1), "^(Healthy|Degraded|Unhealthy|Unsure): "),
    (("lint", "train.py"), (0,), "DDL101"),
)
_BUILD_SDIST = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
_REQUIRE_CLEAN = (
    "import ddp_doctor, sys; from importlib.util import find_spec;"
    " assert ddp_doctor.__file__.startswith(sys.prefix) and not find_spec('torch'), ddp_doctor.__file__"
)
_NEXT = f"""
build/release is ready. Nothing is published yet. Next:
  1. Replace "(unreleased)" with the date in CHANGELOG.md, commit it and run `make release` again.
  2. git tag v{__version__} && git push origin v{__version__}
  3. python -m twine upload build/release/ddp_doctor-{__version__}*
  4. Attach the .pyz file to the release, and publish build/release/site.
"""


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist of this checkout, and the wheel from the sdist. Raises SystemExit."""
    sdist = folder / _run(sys.executable, "-c", _BUILD_SDIST, folder, cwd=ROOT).split()[-1]
    pip_wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    _run(*pip_wheel, "--wheel-dir", folder, sdist, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def check_installed(package: Path, place: Path) -> None:
    """Install a package and its requirements into a new environment, and try its commands. Raises SystemExit."""
    venv.create(place / "venv")
    python = place / "venv/bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check")
    _run(*pip, "install", "--no-compile", package, cwd=place)
    _run(python, "-I", "-c", _REQUIRE_CLEAN, cwd=place)
    check_commands(place, place / "venv/bin/ddp-doctor")


def check_commands(place: Path, *program: str | Path) -> None:
    """Try the commands of a program as a new user would, in an empty home. Raises SystemExit."""
    temporary = place / "tmp"
    temporary.mkdir(parents=True)
    (place / "train.py").write_text(_SCRIPT)
    clean = {"HOME": str(place), "TMPDIR": str(temporary), "PATH": os.defpath, "LANG": "C.UTF-8"}
    for words, codes, pattern in _COMMANDS:
        printed = _run(*program, *words, cwd=place, env=clean, codes=codes)
        if not re.search(pattern, printed, re.MULTILINE):
            raise SystemExit(f"release: {' '.join(words)} in {place.name} did not print {pattern!r}:\n{printed}")
    if left := [path.name for path in temporary.iterdir()]:
        raise SystemExit(f"release: {place.name} left temporary files: {', '.join(left)}")


def _run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None, codes: tuple[int, ...] = (0,)) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        printed = (done.stdout + done.stderr).strip()[-2000:]
        raise SystemExit(f"release: this command failed with exit code {done.returncode}: {' '.join(words)}\n{printed}")
    return done.stdout


def main() -> None:
    """Build everything into build/release and try it. Raises SystemExit."""
    if f"## {__version__} " not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        raise SystemExit(f"release: CHANGELOG.md has no entry for {__version__}, the version in ddp_doctor/__init__.py")
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    packages = build(TARGET)
    pyz = single_file.make(packages[1], TARGET)
    if SITE.is_dir():
        shutil.copytree(SITE, TARGET / "site")
    if MANUAL.is_file():
        shutil.copy(MANUAL, TARGET)
    with tempfile.TemporaryDirectory(dir=TARGET) as work:
        for package in packages:
            check_installed(package, Path(work) / package.name)
            sys.stdout.write(f"{package.name}: installed in a clean environment, and its commands work\n")
        # -S: without the packages of this environment
        check_commands(Path(work) / pyz.name, sys.executable, "-I", "-S", pyz)
        sys.stdout.write(f"{pyz.name}: its commands work on a bare Python\n")
    sys.stdout.write(_NEXT)


if __name__ == "__main__":
    main()
