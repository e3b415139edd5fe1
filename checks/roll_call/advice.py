"""What the findings of the roll call advise. The doctor tries none of it itself; each remedy says why."""

from functools import partial

from ddp_doctor.model.finding import NOTHING_TO_UNDO, Proof, Remedy, Scope

ANOTHER_START = Proof(reason="it takes another start on those hosts")
_OWNER_OF_HOST = Proof(reason="it takes somebody who may change that host or the network")
_LOOK_FIRST = Proof(reason="somebody has to look at the host or the network first")


def advice(
    summary: str,
    *commands: str,
    scope: Scope,
    proof: Proof,
    cost: str = "none: it only looks",
    undo: str = NOTHING_TO_UNDO,
) -> Remedy:
    """A remedy that a person carries out; without a cost it changes nothing."""
    return Remedy(summary=summary, commands=commands, scope=scope, cost=cost, undo=undo, proof=proof)


#: For a host or network that stands in the way of the roll call.
mend = partial(advice, proof=_OWNER_OF_HOST)
#: For a host or network that failed after the roll call.
look_at = partial(advice, proof=_LOOK_FIRST)
#: For a command that was started with the wrong options, or not at all.
start_again = partial(
    advice, scope="job", proof=ANOTHER_START, cost="none", undo="start with the former options"
)
