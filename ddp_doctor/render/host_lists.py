"""Lists of hosts to use or exclude, one per line, as mpirun, ``--hostfile`` and ``srun --exclude=./FILE`` read them.

A host may be in neither list: for a bad link it is unknown which end is faulty, and a host that did not come was not
tested.
"""

from collections.abc import Iterable, Iterator

from ddp_doctor.facts.collectives import IsolationFact
from ddp_doctor.features import feature_of
from ddp_doctor.model.choices import USABLE, Verdict
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.render.text import one_line

#: Culprits that belong to a host. A setting or a file usually belongs to the job, on any host.
_OF_A_HOST = ("node", "rank", "gpu", "nic", "pair")


def good(report: Report, recording: Recording) -> str:
    """Return hosts that were tested to the end and that no error names, or usable hosts of a fleet."""
    tested = {node.node_rank for node in report.nodes}
    if report.verdict not in USABLE and not _is_of_runs(recording):
        tested = _tested(recording) if report.verdict is Verdict.UNHEALTHY else set()
    usable = [node for node in report.nodes if node.verdict in USABLE and node.node_rank in tested]
    blamed = set(_blamed(report, recording))
    return _lines(host for node in usable if (host := _name(report, node.node_rank, node.hostname)) not in blamed)


def _is_of_runs(recording: Recording) -> bool:
    feature = feature_of(recording.command)
    return feature is not None and feature.is_of_runs


def _tested(recording: Recording) -> set[int]:
    """Return the nodes that ranks or groups tested to the end although a fault was found."""
    if recording.interrupted:
        return set()
    to_the_end = all(trial.outcome == "finished" for trial in recording.trials)
    tested = {reading.node for reading in recording.collected() if reading.rank is not None and to_the_end}
    fact = recording.first(IsolationFact)
    if fact is not None and not fact.stopped:
        tested |= {node for test in fact.tests if test.outcome == "passed" for node in test.nodes}
    return tested


def bad(report: Report, recording: Recording) -> str:
    """Return hosts whose node, rank, GPU or NIC an error names, and of a fleet only hosts that are still unhealthy."""
    return _lines(_blamed(report, recording))


def _blamed(report: Report, recording: Recording) -> Iterator[str]:
    of_fleet = _is_of_runs(recording)
    unhealthy = {node.hostname for node in report.nodes if node.verdict is Verdict.UNHEALTHY}
    for finding in report.findings:
        scopes = {remedy.scope for remedy in finding.remedies}
        for culprit in finding.culprits if finding.is_certain_error else ():
            if culprit.kind == "rank" and scopes and scopes <= {"job", "code"}:
                continue  # it would do the same on other hosts
            alone = culprit.kind in _OF_A_HOST and culprit.peer_node in (None, culprit.node)
            if culprit.node and alone and (not of_fleet or culprit.node in unhealthy):
                yield _name(report, culprit.node_rank, culprit.node)


def _name(report: Report, node_rank: int | None, hostname: str) -> str:
    """Return the name that the launcher uses: SLURM's name of a node may differ from its own."""
    expected = report.world.expected_hosts if report.world is not None and node_rank is not None else ()
    return expected[node_rank] if node_rank is not None and node_rank < len(expected) else hostname


def _lines(hosts: Iterable[str]) -> str:
    return "".join(f"{one_line(host)}\n" for host in dict.fromkeys(hosts))
