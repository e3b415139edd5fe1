"""DD781: a rank that makes another loss or other gradients of the same work."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.user_model.words import (
    at,
    code,
    culprits,
    facts,
    grouped,
    in_model_code,
    names,
    on_ranks,
    rank,
)
from ddp_doctor.facts.ddp.user_model import UserModel
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import NOBODY, likely

#: A loss that differs by more than the order of additions explains.
_LOSS_APART = 1e-3


@rule(
    "DD781",
    "user-model-computes-otherwise-on-a-rank",
    Severity.WARNING,
    UserModel,
    explained_by=("DD776", "DD778", "DD779"),
)
def computes_otherwise(recording: Recording) -> Iterator[Draft]:
    """A rank that makes another loss, or other gradients, of the same batch.

    What it finds
        With the parameters, buffers, seed and batch of the first rank a rank's loss is another number than
        most ranks', though its own work is repeatable; beyond a thousandth it is a warning, else information.
        Or its loss is the same and gradients are off by more than a tenth: a hook that this rank alone has is
        named with its line.

    Why it matters
        The model depends on something that is not shared: the rank, the node, its hardware or libraries. What
        one rank makes otherwise goes into the mean of all.

    Remedy
        Look for code that asks for the rank; compare GPU models and versions between the ranks.

    References
        https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    seen = [one for one in facts(recording) if one.fact.repeats]
    peer = _usual(seen)
    off = [one for one in seen if peer is not None and _apart(one.fact, peer.fact) > 0.0]
    apart = [one for one in facts(recording) if one.fact.apart.count]
    if peer is not None and any(_apart(one.fact, peer.fact) > _LOSS_APART for one in off):
        yield _other_loss(recording, off, peer)
    elif apart:
        yield _other_gradients(recording, apart)
    elif peer is not None and off:
        yield _rounded_otherwise(recording, off, peer)


def _usual(seen: list[FactAt[UserModel]]) -> FactAt[UserModel] | None:
    """A rank with whose loss most agree but for rounding, else the first: each is compared with it."""
    return next(
        (
            one
            for one in seen
            if 2 * sum(_apart(other.fact, one.fact) <= _LOSS_APART for other in seen) > one.fact.world_size
        ),
        seen[0] if seen else None,
    )


def _apart(fact: UserModel, peer: UserModel) -> float:
    """How far the losses are apart, relative to the peer's; 0 where neither rank has one."""
    mine, other = fact.same_batch_loss, peer.same_batch_loss
    if mine == other:
        return 0.0
    if mine is None or other is None:
        return float("inf")
    return abs(mine - other) / max(abs(other), 1e-12)


def _other_loss(recording: Recording, off: list[FactAt[UserModel]], peer: FactAt[UserModel]) -> Draft:
    far = [one for one in off if _apart(one.fact, peer.fact) > _LOSS_APART]
    worst = max(far, key=lambda one: _apart(one.fact, peer.fact))
    is_sure = 2 * len(far) < peer.fact.world_size
    return likely(
        culprits(recording, far) if is_sure else (),
        f"The same batch, seed and parameters of {peer.fact.model} give another loss on"
        f" {on_ranks(recording, far)} than on {on_ranks(recording, [peer])}",
        _loss_of(worst, peer),
        in_model_code("Look for code that asks for the rank, and for other hardware or libraries there"),
    )


def _rounded_otherwise(recording: Recording, off: list[FactAt[UserModel]], peer: FactAt[UserModel]) -> Draft:
    worst = max(off, key=lambda one: _apart(one.fact, peer.fact))
    return likely(
        NOBODY,
        f"The same batch, seed and parameters of {peer.fact.model} give another loss on"
        f" {on_ranks(recording, off)} than on {on_ranks(recording, [peer])}, by rounding",
        _loss_of(worst, peer),
        in_model_code("Look for other hardware or libraries there, where runs are to be repeated exactly"),
        severity=Severity.INFO,
    )


def _loss_of(worst: FactAt[UserModel], peer: FactAt[UserModel]) -> Evidence:
    expected = f"rank {rank(peer)}'s"
    return Evidence(
        text=f"loss on rank {rank(worst)}",
        value=worst.fact.same_batch_loss,
        expected=peer.fact.same_batch_loss,
        expected_from=expected,
    )


def _other_gradients(recording: Recording, apart: list[FactAt[UserModel]]) -> Draft:
    by_rank = {rank(one): one for one in facts(recording)}
    first = apart[0]
    peer = by_rank.get(first.fact.same_batch_peer or 0, first)
    hooks = _hooks_of_one(first, peer)
    told = f": {hooks[0][0]} alone has a hook on {hooks[0][1]}{at(hooks[0][2])}" if hooks else ""
    is_sure = 2 * len(apart) < first.fact.world_size
    parameters = grouped((one.fact.apart, one) for one in apart)
    return likely(
        (
            *(culprits(recording, apart) if is_sure else ()),
            *(code(where) for where in dict.fromkeys(where for _, _, where in hooks[:4] if where)),
        ),
        f"The same batch, seed and parameters of {first.fact.model} give another gradient of"
        f" {names(first.fact.apart)} on {on_ranks(recording, apart)} than on {on_ranks(recording, [peer])}"
        + told,
        (
            *(
                Evidence(
                    text=f"another gradient on {on_ranks(recording, group)}: {names(some)}",
                    value=float(some.count),
                )
                for some, group in list(parameters.items())[:8]
            ),
            *(
                Evidence(text=f"{who} alone has a hook on {name}{at(where)}")
                for who, name, where in hooks[:8]
            ),
        ),
        in_model_code("Register the same hooks on every rank, and let none ask for the rank")
        if hooks
        else in_model_code("Look for hooks and autograd functions that ask for the rank"),
        detail="The loss is the same; the mean of all ranks' gradients is not that of their losses.",
    )


def _hooks_of_one(seen: FactAt[UserModel], peer: FactAt[UserModel]) -> list[tuple[str, str, str]]:
    """The hooks that one of two ranks has and the other has not: rank, parameter, line."""
    here, there = (one.fact.hooks for one in (seen, peer))
    pairs = ((seen, set(here) - set(there)), (peer, set(there) - set(here)))
    return sorted((f"rank {rank(one)}", hook.parameter, hook.where) for one, hooks in pairs for hook in hooks)
