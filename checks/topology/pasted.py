"""A pasted or saved topology as readings: other doors to the facts that the probe collects live."""

from ddp_doctor.checks.topology.facts import TopologyFact
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.parse.topo_matrix import TopologyError, parse_matrices

#: A paste may be a whole log; only its beginning goes into the recording.
_KEPT_CHARACTERS = 200_000


def read_pasted(text: str) -> tuple[Reading, ...]:
    """A pasted or saved output as readings: one a matrix, or the one that says why there is none."""
    raw = text[:_KEPT_CHARACTERS]
    try:
        facts = [TopologyFact(**dict(matrix)) for matrix in parse_matrices(text)]
    except TopologyError as error:
        return (Reading(check="topology", status=Status.FAILED, reason=str(error), raw=raw),)
    return tuple(
        Reading(check="topology", status=Status.COLLECTED, node=host, fact=fact.recorded(), raw=raw)
        for host, fact in enumerate(facts)
    )
