"""Real gloo ranks hang, and their dumps identify the culprit: both forms, complete, incomplete or truncated."""

import subprocess
import sys
from pathlib import Path

import pytest

from ddp_doctor.facts.given import FlightDumpFact
from ddp_doctor.parse.flight_recorder import is_dump, read_dump
from tests.features.jobs.logs.dumps import named, verdicts
from tests.features.jobs.logs.make_dumps import SITUATIONS
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.lab  # 54 processes

SIZES = (2, 4)


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hung")
    sizes = ",".join(map(str, SIZES))
    argv = (sys.executable, "-m", "tests.features.jobs.logs.make_dumps", folder, "--ranks", sizes)
    made = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert made.returncode == 0, made.stderr[-2000:]
    return folder


def read(paths: list[Path]) -> list[FlightDumpFact]:
    found = []
    for path in paths:
        data = path.read_bytes()
        assert is_dump(data[:4096], path.name)
        found.append(read_dump(data, str(path), None))
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("situation", list(SITUATIONS))
def test_culprit_is_found_in_either_form_and_damaged_dumps_blame_no_other_rank(situation: str, size: int, hung: Path):
    expected = SITUATIONS[situation]
    culprits = expected.culprits(size)
    for form in ("*.json", "nccl_trace_rank_*"):
        paths = sorted((hung / f"{situation}-{size}").glob(form))
        dumps = read(paths)
        cause, blamed = named(dumps)
        if size > 2:
            assert (cause, blamed) == (expected.cause, culprits), form
        assert blamed <= culprits, form
        for place, dump in enumerate(dumps):
            others = dumps[:place] + dumps[place + 1 :]
            torn = read_dump(paths[place].read_bytes()[:-50], dump.file, None)
            for put in ([], [torn], [read_dump(b"", dump.file, None)]):
                assert named([*others, *put])[1] <= culprits, (form, dump.file)


def test_pickle_shows_where_the_culprit_called_its_last_collective(hung: Path):
    (found,) = verdicts(read(sorted((hung / "missing-4").glob("nccl_trace_rank_*"))))

    assert "Rank 3 called its last collective at " in found.detail
    assert "/tests/features/jobs/logs/make_dumps.py:" in found.detail
