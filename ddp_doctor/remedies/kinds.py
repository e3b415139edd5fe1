"""Remedies that somebody carries out by hand: who that is, and why the doctor tried nothing."""

from functools import partial

from ddp_doctor.model.finding import NOTHING_TO_UNDO, Proof, Remedy, Scope


def remedy(
    summary: str,
    *commands: str,
    scope: Scope = "node",
    cost: str = "",
    undo: str = "",
    untried: str = "",
    references: tuple[str, ...] = (),
    container: tuple[str, ...] = (),
) -> Remedy:
    """What to do, and the commands for it. ``untried`` is why no trial proves it, ``container`` as in Remedy."""
    return Remedy(
        summary=summary,
        commands=commands,
        scope=scope,
        cost=cost,
        undo=undo,
        proof=Proof(reason=untried or None),
        references=references,
        container=container,
    )


#: For whoever runs the machines.
by_administrator = partial(remedy, undo=NOTHING_TO_UNDO, untried="it takes an administrator")
#: For whoever runs the GPUs: to look at them, to reset or to replace one.
by_operator = partial(
    remedy,
    undo="nothing is changed",
    untried="it takes an operator or another allocation; the doctor changes nothing",
)
#: For whoever writes the training script.
in_code = partial(
    remedy, scope="code", undo=NOTHING_TO_UNDO, untried="the doctor runs none of the job's code"
)
#: Why no trial proves a change of the script that would change what is trained.
CHANGES_TRAINING = "it changes training code, and the doctor runs none of it"
