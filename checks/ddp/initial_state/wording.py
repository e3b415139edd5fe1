"""How findings speak of models that differ between ranks.

The consequences are those of torch 2.13 over gloo, seen on three ranks of which rank 1 was the odd one: see
docs/explanation/ddp-semantics.md.
"""

from ddp_doctor.facts.ddp.model_state import InitialState
from ddp_doctor.knowledge.ddp.manifests import Difference, Kind
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.kinds import in_code
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.ranks import capital, rank_at, rank_culprits, ranks_at

#: Of a difference that DDP does not see: it pairs the ranks' lists by place.
_MIXED = "DDP goes by the place in the list and raises nothing: it averages what does not belong together."
_REFUSED = "DDP refuses such a model, if it comes that far: its message counts parameters and names none."
_UNSEEN = (
    "DDP does not compare this: bytes arrive in the wrong place or form, a rank aborts, or all wait for ever."
)
_CONSEQUENCES: dict[Kind, str] = {
    "missing": _REFUSED,
    "extra": _REFUSED,
    "tied": "DDP sees a shared parameter once, so that the ranks' lists have different lengths, and refuses.",
    "shape": "The rank that is unlike rank 0 raises, and the others lose their connections or wait.",
    "strides": "The rank that is unlike rank 0 raises, and the others lose their connections or wait.",
    "order": _MIXED,
    "name": "DDP goes by the place in the list and does not see names: right only if they mean the same layer.",
    "requires_grad": "DDP averages what requires a gradient, by place: with unequal numbers it refuses, with"
    " equal ones it averages what does not belong together.",
    "persistent": "The state_dict of some ranks has it and that of others has not.",
}


def consequence(difference: Difference) -> str:
    """What becomes of it in DDP."""
    if difference.what == "buffer" and difference.kind != "persistent":
        return _UNSEEN
    return _CONSEQUENCES.get(difference.kind, _UNSEEN)


def model_draft(
    recording: Recording,
    difference: Difference,
    whose: str,
    *remedies: Remedy,
) -> Draft:
    """A finding about one difference; ``whose`` is the model's name in a sentence: "the probe's model"."""
    ranks, peer = ranks_at(recording, difference.ranks), rank_at(recording, difference.peer)
    more = f" and {difference.count - 1} more" if difference.count > 1 else ""
    name = f"{difference.what} {difference.names[0]}{more}"
    title = f"{capital(whose)} differs on {ranks}: {_how(difference, name)}"
    if not difference.sure:
        title = f"{capital(whose)} differs between {peer} and {ranks}: {_how(difference, name)} on the latter"
    unsure = "" if difference.sure else " No majority tells which of them is wrong."
    return finding(
        rank_culprits(recording, InitialState, difference.ranks if difference.sure else ()),
        title,
        Evidence(
            text=f"{difference.kind} of {difference.names[0]}: {difference.here} on {ranks},"
            f" {difference.there} on {peer}",
        ),
        *remedies,
        confidence=Confidence.PROVED if difference.sure else Confidence.LIKELY,
        detail=f"{_listed(difference)}Compare {ranks} with {peer}.{unsure} {consequence(difference)}",
    )


def _how(difference: Difference, name: str) -> str:
    """``parameter head.weight is missing``, ``parameter head.weight has shape (5) instead of (4)``."""
    here, there = difference.here, difference.there
    if difference.kind in ("missing", "extra"):
        return f"{name} {'is missing' if difference.kind == 'missing' else 'in addition'}"
    if difference.kind == "order":
        return f"{difference.what} {here}, not {there.rpartition(' ')[2]}"
    if difference.kind == "name":
        return f"{name} is called {here}"
    if difference.kind == "tied":
        return f"{name} is {here if ' ' in here else f'tied to {here}'}, not {there}"
    return f"{name} has {difference.kind.replace('strides', 'memory format')} {here} instead of {there}"


def _listed(difference: Difference) -> str:
    if difference.count == 1:
        return ""
    left = difference.count - len(difference.names)
    return f"Concerned are {', '.join(difference.names)}{f' and {left} more' if left else ''}. "


#: What mends a model of the user's own.
SAME_MODEL = in_code(
    "Build the same modules in the same order on every rank",
    "python -c 'import sys; print(sys.flags.hash_randomization)'",
    cost="None: look for layers under `if rank`, for names that come from a set or an unsorted directory, and"
    " for configurations that differ between nodes",
    untried="only the code of the model can be changed",
    references=("https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",),
)
