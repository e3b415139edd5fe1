"""The report as JSON: the envelope of docs/reference/report.schema.json."""

from ddp_doctor.model.report import Report, TopologyReport


def render(report: Report) -> str:
    """One JSON document, indented, ending in a newline."""
    absent = report.absent() if isinstance(report, TopologyReport) else None
    return report.model_dump_json(by_alias=True, indent=1, exclude=absent) + "\n"
