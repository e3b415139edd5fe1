"""``ddp-doctor fit``: refused options, factories that fail, and the outputs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.recordings import path_of

Asked = Callable[..., "CompletedProcess[str]"]

NET = """import torch

def make():
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))), lambda step: torch.randn(4, 64)

def fails():
    raise KeyError("x")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("nett:make", "cannot use nett:make: found no module 'nett'"),
        ("net:mak", "has no function 'mak'; did you mean 'make'"),
        ("net.py:make", "expected a module name instead of a file"),
        ("net:make --memory 80", "invalid --memory '80': expected one GPU's memory with a unit, for example 80GiB"),
        ("net:make --memory 0GiB", "expected more than 0 bytes"),
        ("net:make --memory much", "invalid --memory 'much'"),
        ("net:make --ranks 0", "invalid --ranks '0': expected at least 1"),
        ("net:make --precision fp16", "invalid --precision 'fp16': expected fp32, bf16 or amp"),
        ("net:make --strategy zero4", "invalid --strategy 'zero4': expected ddp"),
        ("net:make --strategy fsdp", "did you mean 'zero3'"),
        ("net:make --batch 3", "--batch applies only to hf: models"),
        ("net:make --seq 3", "--seq applies only to hf: models"),
        ("net:make --measure --ranks 64", "--ranks cannot be used with --measure, which runs on this machine"),
    ],
)
def test_wrong_use_gives_a_reason_and_exit_code_2(asked: Asked, here: Path, args: str, sentence: str):
    done = asked("fit", *args.split(), cwd=here)

    assert done.returncode == 2, done
    assert sentence in done.stderr


@pytest.mark.ranks
def test_factory_is_estimated_on_one_rank_and_all_outputs_agree(asked: Asked, here: Path):
    kept = {name: here / f"report.{name}" for name in ("json", "html", "markdown", "record")}
    done = asked(
        *("fit", "net:make", "--memory", "80GiB", "--ranks", "8", "-v"),
        *(word for name, path in kept.items() for word in (f"--{name}", str(path))),
        cwd=here,
    )
    replayed = asked("replay", str(kept["record"]), cwd=here)

    assert done.returncode == replayed.returncode == 0, done
    report = json.loads(kept["json"].read_text())
    assert report["world"]["world_size"] == 1
    assert (report["ranks"], report["memory_bytes"]) == (8, 80 << 30)
    assert len(report["estimates"]) == 12
    assert all(sum(each["parts"].values()) == each["peak_bytes"] for each in report["estimates"])
    for text in (done.stdout, replayed.stdout, kept["html"].read_text(), kept["markdown"].read_text()):
        assert "zero3-offload" in text
        assert re.search(r"DDP\s+needs", text)


@pytest.mark.ranks
def test_factory_that_raises_is_unusable_and_its_line_is_shown(asked: Asked, here: Path):
    done = asked("fit", "net:fails", "--memory", "80GiB", cwd=here)

    assert done.returncode == 2, done
    assert "Error: cannot use net:fails: its factory raises KeyError at" in done.stdout
    assert "net.py:7" in done.stdout
    assert not (here / "state").exists()


@pytest.mark.ranks
def test_strategies_that_fit_are_measured_on_the_available_ranks(asked: Asked, here: Path):
    done = asked("fit", "net:make", "--memory", "1GiB", "--measure", "--json", "report.json", cwd=here)

    assert done.returncode == 0, done
    report = json.loads((here / "report.json").read_text())
    measured = {each["strategy"] for each in report["estimates"] if each["measured_bytes"]}
    assert measured == {"ddp", "ddp-bucket-view", "zero1", "zero2", "zero3"}
    assert report["ranks"] == report["world"]["world_size"] == 2
    assert "measured" in done.stdout


def test_page_shows_the_parts_of_each_peak_and_the_memory_limit(asked: Asked, here: Path):
    done = asked("replay", str(path_of("fit/zero1")), "--html", str(here / "page.html"), cwd=here)
    page = (here / "page.html").read_text()

    assert done.returncode == 0
    assert 'class="part activations"' in page
    assert page.count('class="mark"') == 12
    assert "the dashed line is 40 GiB" in page
    assert "✗ ddp" in page
    assert "✓ zero1" in page


def test_redaction_removes_the_host_name(asked: Asked, here: Path):
    done = asked("replay", str(path_of("fit/zero1")), "--redact", "--json", "-", cwd=here)

    assert json.loads(done.stdout)["world"]["nodes"][0]["hostname"] == "host1"
