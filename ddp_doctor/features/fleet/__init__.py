"""fleet: many runs of many nodes, compared by their reports."""

from ddp_doctor.features import Feature, later
from ddp_doctor.features.fleet.baseline import Baseline
from ddp_doctor.features.fleet.report import FleetReport
from ddp_doctor.features.fleet.table import parts, tables


def _page(report: FleetReport) -> tuple[str, dict[str, object]]:
    return "fleet.html", {"parts": list(parts(report, each=False))}


FEATURE = Feature(
    report=FleetReport,
    documents={"baseline": (Baseline, "baseline of healthy runs (fleet --write-baseline)")},
    tables=tables,
    page=_page,
    is_of_runs=True,
    comparison=later("fleet", ".comparison", "comparison_with"),
)
