"""Whole machines through all node checks: the healthy ones are left in peace, and one fault is one finding."""

from pathlib import Path

import pytest

from ddp_doctor.model.choices import Severity, Status, Verdict
from ddp_doctor.model.fact import Reading
from ddp_doctor.sources.files import Files
from tests.machines import servers
from tests.machines.healthy import MACHINES, Healthy
from tests.machines.whole import judge, look

#: What is worth knowing of a healthy machine, at most.
MOST_INFOS = 4


@pytest.mark.parametrize("machine", MACHINES, ids=[one.name for one in MACHINES])
def test_a_healthy_machine_is_called_healthy_in_few_words(machine: Healthy) -> None:
    report = judge(machine.build(), machine.command)

    above = [(one.code, one.title) for one in report.findings if one.severity is not Severity.INFO]
    assert above == []
    assert sorted(one.code for one in report.findings) == sorted(machine.says)
    assert len(report.findings) <= MOST_INFOS
    assert report.verdict is Verdict.HEALTHY
    assert [one.id for one in report.checks if one.status.value in ("failed", "timed_out")] == []


def _fact(reading: Reading) -> tuple[object, ...]:
    return reading.check, reading.status, reading.fact


def test_a_machine_in_memory_is_read_like_one_on_a_disk(tmp_path: Path) -> None:
    machine = servers.dgx_h100(as_root=True)
    in_memory = [_fact(reading) for reading in look(machine)]

    machine.board.tree.save(tmp_path)
    machine.board.tree = Files(str(tmp_path))  # type: ignore[assignment]

    assert [_fact(reading) for reading in look(machine)] == in_memory
    assert all(status is Status.COLLECTED for _, status, _ in in_memory)
