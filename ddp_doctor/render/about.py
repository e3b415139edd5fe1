"""The command, time, nodes and versions of a run; differing nodes are listed separately.

nodes    node1 and node2: 16 ranks, nccl
torch    2.15.0+cu130 on node1; 2.13.0+cu130 on node2
"""

from collections.abc import Iterator

from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.views.node_traits import VERSIONS
from ddp_doctor.wording.nodes import host, name_list


def lines(report: Report, recording: Recording) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each line."""
    yield "ddp-doctor", f"{report.tool.version}, {recording.options.command}"
    job = f", {report.job.scheduler} job {report.job.id}" if report.job else ""
    yield "when", f"{report.started_at}, {report.duration_s:.1f} s{job}"
    if report.world is not None:
        names = name_list([node.hostname for node in report.nodes])
        size = report.world.world_size
        ranks = f": {size} rank{'s' if size > 1 else ''}, {report.world.backend}" if size else ""
        yield "nodes", f"{names}{ranks}"
    for name, (kind, value) in VERSIONS.items():
        by_value = grouped(
            (version, host(recording, found.node))
            for found in recording.facts(kind)
            if (version := value(found.fact)) is not None
        )
        if len(by_value) > 1:
            yield name, "; ".join(f"{version} on {name_list(nodes)}" for version, nodes in by_value.items())
        elif version := "".join(by_value):
            yield name, version
