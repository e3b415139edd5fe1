"""The nodes as the rules of this check see them: what each would present to the others."""

from ddp_doctor.checks.node.interfaces.wording import Group
from ddp_doctor.facts.interfaces import InterfacesFact
from ddp_doctor.knowledge.interface_faults import Offer
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.interfaces import offer_of


def offers_of(recording: Recording, backend: str | None = None) -> list[Offer]:
    """The nodes of a run of several, as a backend (the run's) presents them; none in a run of one."""
    world = recording.world
    if world is None or world.nnodes < 2:
        return []
    return [offer_of(seen, backend or world.backend) for seen in recording.facts(InterfacesFact)]


def severity_unless_used(recording: Recording, group: Group) -> Severity | None:
    """Information where the run's backend is another one; else the group's own severity."""
    in_use = recording.world is not None and recording.world.backend == group.sick[0].backend
    return None if in_use else Severity.INFO
