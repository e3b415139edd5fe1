"""Machines that cannot simulate a GPU: manual runs skip tests with the reason, continuous integration fails."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import hosts
from tests.planted import libraries, why_none, why_not_before
from tests.waiting import LIMIT_S
from tools.refuse_skips import ALLOWED

Patch = pytest.MonkeyPatch


def _another_architecture(patch: Patch, _tools: Path) -> None:
    patch.setattr(platform, "machine", lambda: "aarch64")


def _not_root(patch: Patch, _tools: Path) -> None:
    patch.setattr(os, "geteuid", lambda: 1000)


def _no_compiler(_patch: Patch, tools: Path) -> None:
    (tools / "cc").unlink()


def _no_namespaces(_patch: Patch, tools: Path) -> None:
    (tools / "unshare").write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        (_another_architecture, "no GPU can be planted on aarch64: redirect.c writes jumps of x86_64"),
        (_not_root, "needs root"),
        (_no_compiler, "needs cc"),
        (_no_namespaces, "needs namespaces: unshare: unshare failed: Operation not permitted"),
    ],
)
def test_missing_tool_is_the_reason(
    lacks: Callable[[Patch, Path], None], reason: str, monkeypatch: Patch, tmp_path: Path
):
    for tool in (*hosts.TOOLS, "cc"):
        (tmp_path / tool).write_text("#!/bin/sh\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(hosts, "_why_no_namespaces", hosts._why_no_namespaces.__wrapped__)
    assert why_none() is None

    lacks(monkeypatch, tmp_path)

    assert why_none() == reason
    assert not any(allowed.search(reason) for allowed in ALLOWED)


@pytest.mark.parametrize("stripped", [True, False])
def test_a_library_without_symbols_cannot_be_redirected(stripped: bool, tmp_path: Path):
    libraries()  # skips without a compiler
    (tmp_path / "some.c").write_text(
        "static int cudaMalloc(void) { return 1; } int ncclInit(void) { return cudaMalloc(); }\n"
    )
    library = tmp_path / "libnccl.so.2"
    options = ("-shared", "-fPIC", "-O0", *(["-s"] if stripped else []))
    subprocess.run(("cc", *options, tmp_path / "some.c", "-o", library), check=True, timeout=LIMIT_S)

    reason = f"{library} has no symbols of a CUDA runtime to redirect"
    assert why_not_before(library) == (reason if stripped else None)
