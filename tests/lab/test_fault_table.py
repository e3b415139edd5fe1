"""Every fault of the table: the right finding and culprit, no innocent, and nothing left; some also in time.

All must end within LIMIT_S. How long a row takes is measured where it has the machine to itself.
"""

import pytest

from tests.lab import fault_table
from tests.lab.fault_rows import ROWS, Row
from tests.lab.fault_run import run_row
from tests.lab.hosts import why_no_lab

pytestmark = pytest.mark.lab


#: Two of each kind of evidence, from which on the seconds count, with as many hosts as the table has for it.
IN_TIME = (
    *("inbound-192", "black-hole-of-4"),  # the start
    *("head-never", "node2-never"),  # the end of the wait for nodes
    *("rank-stopped-of-4", "power-off-of-4"),  # the fault itself
)
#: Serial: the seconds of these rows are compared with a limit.
CASES = [pytest.param(row, id=row.id, marks=[pytest.mark.serial] if row.id in IN_TIME else []) for row in ROWS]


@pytest.mark.parametrize("row", CASES)
def test_the_fault_is_named_with_its_culprit(row: Row) -> None:
    if reason := why_no_lab(*(("cc",) if any("skewed-clock" in fault for fault in row.plant) else ())):
        pytest.skip(reason)
    outcome = run_row(row)
    fault_table.keep(outcome)
    for name, said in outcome.printed.items():
        print(f"--- {name}\n{said}")
    assert outcome.problems == []
    if row.id in IN_TIME:
        assert outcome.late == []


def test_the_rows_that_must_be_in_time_are_in_the_table() -> None:
    assert set(IN_TIME) <= {row.id for row in ROWS}
