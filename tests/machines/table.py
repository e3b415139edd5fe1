"""Every healthy machine and every planted fault, and what the doctor says; printed as a table.

    python -m tests.machines.table

A line is: machine or fault | code | severity | verdict | title | culprits. tests/machines/test_machines.py asserts it.
"""

from collections.abc import Iterator

from ddp_doctor.model.report import Report
from tests.machines.faults import FAULTS, blame
from tests.machines.healthy import MACHINES
from tests.machines.whole import judge


def lines() -> Iterator[tuple[str, str, str, str, str, str]]:
    """The rows of the table."""
    for machine in MACHINES:
        yield from _rows(machine.name, judge(machine.build(), machine.command))
    for fault in FAULTS:
        yield from _rows(fault.name, judge(fault.nodes()))


def _rows(name: str, report: Report) -> Iterator[tuple[str, str, str, str, str, str]]:
    if not report.findings:
        yield name, "-", "-", report.verdict.value, "", ""
    for finding, (code, severity, culprits) in zip(report.findings, blame(report), strict=True):
        yield name, code, severity, report.verdict.value, finding.title, culprits


def main() -> None:
    """Print the table."""
    for line in (("machine or fault", "code", "severity", "verdict", "title", "culprits"), *lines()):
        print("{:<52} | {:<5} | {:<8} | {:<7} | {} | {}".format(*line))


if __name__ == "__main__":
    main()
