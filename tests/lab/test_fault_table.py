"""Every fault of the table: the right finding and culprit, no innocent, in time, and nothing left."""

import pytest

from tests.lab import fault_table
from tests.lab.fault_rows import ROWS, Row
from tests.lab.fault_run import run_row
from tests.lab.hosts import why_no_lab

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_the_fault_is_named_with_its_culprit_in_time(row: Row) -> None:
    if reason := why_no_lab(*(("cc",) if any("skewed-clock" in fault for fault in row.plant) else ())):
        pytest.skip(reason)
    outcome = run_row(row)
    fault_table.keep(outcome)
    for name, said in outcome.printed.items():
        print(f"--- {name}\n{said}")
    assert outcome.problems == []
    assert outcome.late == []
