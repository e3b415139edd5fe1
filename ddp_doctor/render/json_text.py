"""The report as JSON: the envelope of docs/reference/report.schema.json."""

from ddp_doctor.model.report import Report


def render(report: Report) -> str:
    """One JSON document, indented, ending in a newline."""
    absent = {"topologies"} if getattr(report, "topologies", 0) is None else None
    return report.model_dump_json(indent=1, exclude=absent) + "\n"
