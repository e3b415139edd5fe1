"""Every healthy machine and every planted fault, and what the doctor says; printed as a table.

    python -m tests.machines.table

A line is: machine or fault | code | severity | verdict | title | culprits. tests/machines/test_machines.py asserts it.
"""

import functools
from collections.abc import Iterator

from ddp_doctor.model.report import Report
from tests.machines.faults import FAULTS, Planted, blame
from tests.machines.healthy import MACHINES, Healthy
from tests.machines.whole import judge


@functools.cache
def report_of(one: Healthy | Planted) -> Report:
    """What the doctor says of it; it is looked at once."""
    if isinstance(one, Planted):
        return judge(one.nodes())
    return judge(one.build(), one.command)


def lines() -> Iterator[tuple[str, str, str, str, str, str]]:
    """The rows of the table."""
    for one in (*MACHINES, *FAULTS):
        yield from _rows(one.name, report_of(one))


def _rows(name: str, report: Report) -> Iterator[tuple[str, str, str, str, str, str]]:
    if not report.findings:
        yield name, "-", "-", report.verdict.value, "", ""
    for one in report.findings:
        yield name, one.code, one.severity.value, report.verdict.value, one.title, blame(one)


def main() -> None:
    """Print the table."""
    for line in (("machine or fault", "code", "severity", "verdict", "title", "culprits"), *lines()):
        print("{:<52} | {:<5} | {:<8} | {:<7} | {} | {}".format(*line))


if __name__ == "__main__":
    main()
