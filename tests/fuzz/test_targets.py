"""Every parser is fuzzed, and none fails on text that is almost correct or not correct at all."""

from __future__ import annotations

import ast
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.target import Target
from tests.fuzz.targets import NOT_FOREIGN, TARGETS

#: Targets that are not a function of ddp_doctor.parse.
ELSEWHERE = {
    "gpus.sysfs_bus_id", "recordings.load_recording", "pasted.read_pasted", "linting.lint_bytes",
    "failed_trials.complaints", "failed_trials.used_elsewhere", "containers.document",
    "options.memory_bytes", "options.require_strategy",
}  # fmt: skip
#: Characters that separate lines, cells, lists and numbers in some format.
SIGNS = " \t\n\r\f\0\x1b=:;,.-_#/|[](){}<>\"'0123456789axAX\u0660\u00b2\ud800"


def _public_functions() -> Iterator[str]:
    root = Path(__file__).parents[2]
    for path in (*sorted((root / "ddp_doctor/parse").glob("*.py")), *(root / reader for reader in READERS)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield f"{path.stem}.{node.name}"


def test_every_public_parser_of_foreign_text_is_fuzzed():
    fuzzed = {target.name for target in TARGETS}
    public = set(_public_functions())

    assert sorted(public - fuzzed - set(NOT_FOREIGN)) == [], "add these to tests/fuzz/targets.py"
    assert sorted((fuzzed | set(NOT_FOREIGN)) - public - ELSEWHERE) == [], "gone"
    assert sorted(fuzzed & set(NOT_FOREIGN)) == []
    assert len(fuzzed) == len(TARGETS), "one target for each"


def test_a_seed_of_each_parser_is_understood():
    refusing = [target.name for target in TARGETS if all(_is_refused(target, seed) for seed in target.seeds)]

    assert refusing == [], "seeds that are all refused lead nowhere"


def _is_refused(target: Target, seed: str) -> bool:
    try:
        target.call(seed)
    except target.refuses:
        return True
    return False


def damaged(seed: str, source: random.Random) -> str:
    """``seed`` with pieces cut out, doubled, overwritten or put in from elsewhere."""
    text = seed
    for _ in range(source.randint(1, 6)):
        start = source.randint(0, len(text))
        end = min(len(text), start + source.choice((0, 1, 2, 8, 64, 512)))
        match source.choice(("nothing", "the piece again", "signs", "a number")):
            case "nothing":
                filling = ""
            case "the piece again":
                filling = text[start:end] * source.choice((2, 3, 50))
            case "signs":
                filling = "".join(source.choices(SIGNS, k=source.randint(1, 12)))
            case _:
                filling = source.choice("0123456789") * source.choice((1, 20, 5000))
        text = text[:start] + filling + text[end:]
    return text


# One text for all targets, and not each its own: hypothesis drawing them would cost more than the parsers.


@pytest.mark.fuzz
@given(number=st.integers(0, 2**32 - 1))
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
def test_damaged_seeds_are_read_or_refused(number: int):
    for target in TARGETS:
        source = random.Random(f"{number} {target.name}")
        for _ in range(10):
            _read_or_refused(target, damaged(source.choice(target.seeds), source))


@pytest.mark.fuzz
@given(text=st.text(max_size=500) | st.text(SIGNS, max_size=500))
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
def test_any_text_is_read_or_refused(text: str):
    for target in TARGETS:
        _read_or_refused(target, text)


def _read_or_refused(target: Target, text: str) -> None:
    started = time.process_time()
    try:
        target.call(text)
    except target.refuses:
        pass
    except Exception as error:
        error.add_note(f"{target.name} was given {text!r}")
        raise
    assert time.process_time() - started < 1.0, target.name


_SETTINGS_TEXT = ("setting_text", "shell_settings", "shell_words")
#: Readers outside of ddp_doctor/parse, next to their users.
READERS = (
    "ddp_doctor/features/jobs/reading/steps_said.py",
    "ddp_doctor/features/jobs/reading/endings.py",
    "ddp_doctor/features/jobs/reading/measured.py",
    "ddp_doctor/features/jobs/reading/prefix.py",
    "ddp_doctor/features/jobs/reading/ras.py",
    "ddp_doctor/features/jobs/reading/words.py",
    "ddp_doctor/features/trace/reading/rank.py",
    "checks/node/gpus/accelerators.py",
    "checks/node/kernel/kernel_log.py",
    "checks/node/kernel/processes_in_driver.py",
    "checks/node/pcie/pcie_tree.py",
    "checks/node/rdma/verbs_library.py",
    "checks/node/topology/formats/cpus.py",
    "checks/node/topology/formats/gpu_tables.py",
    "checks/node/topology/live.py",
    "checks/node/topology/formats/nccl_xml.py",
    "checks/node/topology/formats/nvlink_table.py",
    "checks/node/topology/formats/topo_affinity.py",
    "checks/node/topology/formats/topo_matrix.py",
    "checks/node/topology/formats/topo_rows.py",
    "ddp_doctor/probing/host_gpus.py",
    "ddp_doctor/probing/host_limits.py",
    "ddp_doctor/probing/kernel_files.py",
    "ddp_doctor/probing/kernel.py",
    "ddp_doctor/probing/nccl_interface.py",
    "ddp_doctor/probing/pci_devices.py",
    "ddp_doctor/probing/rdma.py",
    "ddp_doctor/probing/setting_origins.py",
    "ddp_doctor/settings/launches/launches.py",
    "ddp_doctor/settings/nccl_conf.py",
    *(f"ddp_doctor/settings/text/{name}.py" for name in _SETTINGS_TEXT),
)
