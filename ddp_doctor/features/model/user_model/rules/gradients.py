"""DD775 to DD781, DD783: gradients that are missing, wrong or not finite, and losses or parameters that differ."""

from collections.abc import Iterator

from ddp_doctor.features.model.user_model import gradient_tolerance
from ddp_doctor.features.model.user_model.facts import LocalPass, UserModel
from ddp_doctor.features.model.user_model.wording import (
    at,
    calls,
    code,
    culprits,
    facts,
    minority,
    named,
    names,
    none_due,
    on_ranks,
)
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.torch_calls import in_model_code
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.nodes import and_more
from ddp_doctor.wording.ranks import rank_of

_Passes = list[tuple[FactAt[UserModel], LocalPass]]
_FIND_UNUSED = in_model_code(
    "Set DistributedDataParallel(..., find_unused_parameters=True) if they are unused on purpose",
    cost="a graph traversal in every step; buckets in the order of construction",
)


@rule("DD775", "user-model-has-unused-parameters", Consequence.FAILS, UserModel)
def unused_everywhere(recording: Recording) -> Iterator[Draft]:
    """Some parameters get no gradient on any rank.

    Finds: Trainable parameters do not contribute to the loss of a batch on any rank: a head that is not called, or a
        layer whose output is dropped. Severity is info if the factory's options for DDP contain
        ``find_unused_parameters=True``, or the model is in fully_shard.
    Why: DDP waits for every gradient, so the second step raises "Expected to have finished reduction in the prior
        iteration".
    Remedy: Remove or freeze them before wrapping, or set ``find_unused_parameters=True``, which costs time in each
        step.
    See: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """
    ranks = [rank for rank in facts(recording) if any(local.unused_everywhere.count for local in rank.fact.local)]
    if not ranks:
        return
    fact = ranks[0].fact
    local = next(local for local in fact.local if local.unused_everywhere.count)
    unused, get = local.unused_everywhere, "gets" if local.unused_everywhere.count == 1 else "get"
    is_harmless = fact.finds_unused or fact.sharded is not None
    yield proved(
        code(*unused.names[:8]),
        f"{names(unused)} of {fact.model} {get} no gradient{'' if is_harmless else ': DDP fails in the second step'}",
        none_due(
            "parameters without a gradient",
            unused.count,
            "trained parameters" if fact.sharded else "DDP waits for their gradients",
        ),
        in_model_code("Remove them, or freeze them (requires_grad_(False)) before wrapping the model"),
        *(() if is_harmless else (_FIND_UNUSED,)),
        detail=f"Unused with batch {local.step} on every rank, {unused.count} of {fact.trainable}"
        " trainable parameters.",
        severity=Severity.INFO if is_harmless else None,
    )


@rule("DD776", "user-model-takes-unequal-graphs", Consequence.HANGS, UserModel)
def unequal_graphs(recording: Recording) -> Iterator[Draft]:
    """Some ranks use different parameters than the others.

    Finds: With the batch of one step, some ranks use parameters that others do not. The finding shows the first
        submodule whose call differs, with the line that calls it. Severity is info if the factory's options for DDP
        contain ``find_unused_parameters=True``, or ``set_reduce_scatter_unused_params`` was called for fully_shard.
    Why: On those ranks, DDP's buckets wait for a gradient that never arrives, while the others wait in the all-reduce.
        The job hangs, or the second step raises.
    Remedy: Let every rank take the same path, or set ``find_unused_parameters=True``, which counts a missing gradient
        as zero.
    See: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """
    for step in sorted({local.step for rank in facts(recording) for local in rank.fact.local}):
        of_step = [(rank, local) for rank in facts(recording) for local in rank.fact.local if local.step == step]
        lacking = [(rank, local) for rank, local in of_step if local.unused.count]
        if lacking:
            yield _unequal(recording, of_step, lacking)
            return


def _unequal(recording: Recording, of_step: _Passes, lacking: _Passes) -> Draft:
    parted = [(rank, local.parting) for rank, local in of_step if local.parting is not None]
    apart = [rank for rank, _ in parted] or [rank for rank, _ in lacking]
    fact, local = lacking[0][0].fact, lacking[0][1]
    sharded = fact.sharded
    is_harmless = sharded.reduces_unused if sharded is not None else fact.finds_unused
    frozen = [(rank, here.frozen) for rank, here in lacking if here.frozen.count]
    reason = ""
    if parted:
        rank, first = parted[0]
        reason = f"; rank {rank_of(rank)} {calls(first.here)}, but rank {first.peer} {calls(first.there)}"
    elif frozen:
        rank, cleared = frozen[0]
        reason = f"; the forward on rank {rank_of(rank)} clears requires_grad of {names(cleared)}"
    called = [call.where for _, parting in parted for call in (parting.here, parting.there) if call is not None]
    return proved(
        (*minority(recording, apart), *code(*called[:1])),
        f"{names(local.unused)} of {fact.model} {'gets' if local.unused.count == 1 else 'get'} no gradient on"
        f" {_where(recording, lacking)}{reason}",
        [
            *(named(f"without a gradient on rank {rank_of(rank)}:", here.unused) for rank, here in lacking[:8]),
            *(
                Evidence(text=f"the forward cleared requires_grad on rank {rank_of(rank)}: {names(some)}")
                for rank, some in frozen[:8]
            ),
        ],
        in_model_code("Take the same path on all ranks; decide by shared values, not by the rank or its data"),
        *(() if fact.finds_unused or fact.sharded else (_FIND_UNUSED,)),
        detail=f"With batch {local.step}, the ranks take different paths through the model."
        + (
            (
                f" {'set_reduce_scatter_unused_params' if sharded else 'find_unused_parameters'}"
                " is set, so a missing gradient counts as zero."
            )
            if is_harmless
            else (
                " fully_shard gathers and reduces the parameters that a rank uses, so the"
                " collectives do not match and the job hangs."
            )
            if sharded
            else " With DDP's default options, the job hangs or fails in its second step."
        ),
        severity=Severity.INFO if is_harmless else None,
    )


def _where(recording: Recording, lacking: _Passes) -> str:
    """Return the ranks that lack the same parameters as the first rank, then the ranks that lack others."""
    first = lacking[0][1].unused
    same = [rank for rank, here in lacking if here.unused == first]
    others = [rank for rank, here in lacking if here.unused != first]
    where = on_ranks(recording, same)
    return f"{where}, others on {on_ranks(recording, others)}" if others else f"{where}, unlike on other ranks"


@rule("DD777", "user-model-gradient-is-not-the-mean", Consequence.WRONG, UserModel)
def not_the_mean(recording: Recording) -> Iterator[Draft]:
    """A gradient of the user's model is not the mean over the ranks after a synchronized step.

    Finds: Reports a parameter that the forward creates or makes trainable: DDP checks only once and does not know it.
        Also reports a gradient that ``backward()`` through DDP leaves in ``.grad`` if it differs, beyond rounding, from
        the float64 mean of the ranks' own gradients with equal parameters and the same batch.
    Why: The ranks do not train on all their data, and each rank may train on different data. The loss still falls.
    Remedy: Look for code that hides a parameter from DDP: ``_ddp_params_and_buffers_to_ignore``, a hook that changes
        gradients, a parameter in two reentrant checkpoints, a parameter replaced after wrapping.
    See: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """
    yield from _unknown(recording)
    ranks = [rank for rank in facts(recording) if rank.fact.off_count]
    if not ranks:
        return
    fact, first = ranks[0].fact, ranks[0].fact.off[0]
    parameters = list(dict.fromkeys(gradient.parameter for here in ranks for gradient in here.fact.off))
    is_own = first.got is not None and first.got == first.own
    yield likely(
        (*culprits(recording, ranks), *code(*parameters[:8])),
        f"DDP returns a wrong gradient for {first.parameter}{and_more(fact.off_count - 1)} of"
        f" {fact.model} on {on_ranks(recording, ranks)}:"
        f" {'it is the local gradient' if is_own else 'it is not the mean of the ranks'}",
        Evidence(
            text=f"worst element of the gradient of {first.parameter} on rank {rank_of(ranks[0])}, step {first.step}",
            value=first.got,
            expected=first.expected,
            expected_from="float64 mean of the ranks' own gradients",
        ),
        in_model_code("Find what hides the parameter from DDP: an ignore list, hooks, a reentrant checkpoint"),
        detail=f"Not the mean: {', '.join(parameters[:16])}. {fact.compared_elements} elements were compared.",
    )


def _unknown(recording: Recording) -> Iterator[Draft]:
    """Yield parameters that exist, or are trainable, only after DDP has wrapped the model."""
    found = [(rank, local.unknown) for rank in facts(recording) for local in rank.fact.local if local.unknown.count]
    if not found:
        return
    (first, unknown), ranks = found[0], list({rank_of(rank): rank for rank, _ in found}.values())
    yield proved(
        (*minority(recording, ranks), *code(*unknown.names[:8])),
        f"DDP does not synchronize {names(unknown)} of {first.fact.model}:"
        f" the forward makes {'it' if unknown.count == 1 else 'them'} trainable on {on_ranks(recording, ranks)}",
        (named(f"rank {rank_of(rank)}: a gradient in", some) for rank, some in found[:8]),
        in_model_code(
            "Create all parameters, and make later ones trainable, before wrapping the model; or wrap it again"
        ),
        detail="DDP collects parameters that require a gradient once, when it wraps the"
        " model. Nothing more was tested.",
    )


@rule("DD778", "user-model-parameters-drift", Consequence.WRONG, UserModel, explained_by=("DD777",))
def drift(recording: Recording) -> Iterator[Draft]:
    """Parameters differ between ranks after a step.

    Finds: After three synchronized steps and one of gradient descent, a parameter is not bit for bit equal to the first
        rank's, although all its gradients are the mean within rounding.
    Why: DDP never synchronizes parameters again. The replicas remain different models, and the checkpoint contains only
        rank 0's.
    Remedy: Look for code that changes parameters in the forward (weights that are normalized or reset in place) based
        on values that differ between ranks.
    See: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """
    ranks = [rank for rank in facts(recording) if rank.fact.drifted.count]
    if not ranks:
        return
    fact = ranks[0].fact
    yield likely(
        (*minority(recording, ranks), *code(*fact.drifted.names[:8])),
        f"After a step, {names(fact.drifted)} of {fact.model} differs between"
        f" {on_ranks(recording, ranks)} and the first rank",
        none_due("parameters that differ", fact.drifted.count, "the first rank's"),
        in_model_code("Find code that changes these parameters outside of the optimizer: in the forward, or in hooks"),
        detail="Their gradients were the mean within rounding.",
    )


@rule("DD779", "user-model-loss-is-not-finite", Consequence.WRONG, UserModel)
def not_finite(recording: Recording) -> Iterator[Draft]:
    """A rank's own loss or gradient is NaN or infinite.

    Finds: The forward and backward of a rank gives NaN or infinity before anything is synchronized.
    Why: The all-reduce carries one rank's NaN to all ranks in the same step, and the origin can no longer be
        identified.
    Remedy: Check that rank's batch and the layer whose gradient is not finite. With fp16, use a GradScaler.
    See: https://docs.pytorch.org/docs/stable/amp.html
    """
    found = [
        (rank, local)
        for rank in facts(recording)
        for local in rank.fact.local
        if local.loss is None or local.not_finite.count
    ]
    if not found:
        return
    ranks = list({rank_of(rank): rank for rank, _ in found}.values())
    first, local = found[0]
    what = "loss" if local.loss is None else f"gradient of {names(local.not_finite)}"
    yield proved(
        culprits(recording, ranks),
        f"The {what} of {first.fact.model} is NaN or infinite on {on_ranks(recording, ranks)} before any exchange",
        (
            Evidence(
                text=f"rank {rank_of(rank)}, batch {local.step}: loss"
                f" {'NaN or infinite' if local.loss is None else f'{local.loss:.4g}'}, gradients of"
                f" {local.not_finite.count} parameters not finite"
            )
            for rank, local in found[:8]
        ),
        in_model_code("Inspect this batch and the first layer whose output is not finite"),
        detail=f"Seen with batch {local.step}. The next all-reduce would spread it to every rank.",
    )


# Parameters that change in the forward (DD778) give different gradients.
@rule("DD780", "user-model-is-not-repeatable", Consequence.RISK, UserModel, explained_by=("DD778",))
def not_repeatable(recording: Recording) -> Iterator[Draft]:
    """The same batch and seed give a different gradient the second time.

    Finds: Two forwards and backwards of a rank with equal parameters, buffers, batch and seeds give gradients that are
        not equal bit for bit.
    Why: A run cannot be repeated exactly. On GPUs, atomic additions may cause this. A difference beyond rounding means
        that the model uses a separate random generator or keeps state.
    Remedy: Set ``torch.use_deterministic_algorithms(True)`` if it matters, and seed every generator.
    See: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    ranks = [rank for rank in facts(recording) if rank.fact.repeats is False]
    if not ranks:
        return
    worst = max(ranks, key=lambda rank: rank.fact.repeat_error or 0.0)
    yield proved(
        NOBODY,
        f"{worst.fact.model} returns a different gradient in a second pass with the same"
        f" batch and seed, on {on_ranks(recording, ranks)}",
        Evidence(
            text=f"largest difference on rank {rank_of(worst)}, relative to the parameter's largest gradient",
            value=worst.fact.repeat_error,
            expected=0.0,
            expected_from="the same work done twice",
        ),
        in_model_code("Seed every generator, and call torch.use_deterministic_algorithms(True)", cost="slower kernels"),
        detail="Synchronized gradients were not compared, because each pass has different gradients."
        if (worst.fact.repeat_error or 0.0) > gradient_tolerance.REPEATED
        else "Synchronized gradients are compared with that much more tolerance.",
    )


#: A larger relative difference between losses cannot come from the order of additions.
_LOSS_APART = 1e-3


@rule("DD781", "user-model-computes-otherwise-on-a-rank", Consequence.WRONG, UserModel, explained_by=("DD778", "DD779"))
def computes_otherwise(recording: Recording) -> Iterator[Draft]:
    """A rank computes a different loss, or different gradients, from the same batch.

    Finds: With the parameters, buffers, seed and batch of the first rank, a rank's loss differs from most ranks',
        although its own computation is repeatable. Severity is error beyond a thousandth, otherwise info. Also reported
        if its loss is the same but gradients are off by more than a tenth; a hook that only this rank has is named with
        its line.
    Why: The model depends on something that is not shared: the rank, the node, its hardware or libraries. The different
        result of one rank goes into the mean of all.
    Remedy: Look for code that checks the rank. Compare GPU models and versions between the ranks.
    See: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    repeatable = [rank for rank in facts(recording) if rank.fact.repeats]
    # The reference is a rank whose loss most ranks share, apart from rounding, or the first rank.
    peer = next(
        (
            rank
            for rank in repeatable
            if 2 * sum(_apart(peer.fact, rank.fact) <= _LOSS_APART for peer in repeatable) > rank.fact.world_size
        ),
        repeatable[0] if repeatable else None,
    )
    off = [rank for rank in repeatable if peer is not None and _apart(rank.fact, peer.fact) > 0.0]
    if any(local.unused.count for rank in facts(recording) for local in rank.fact.local):
        return  # ranks that take different paths have different losses (DD776)
    apart = [rank for rank in facts(recording) if rank.fact.apart.count]
    is_far = peer is not None and any(_apart(rank.fact, peer.fact) > _LOSS_APART for rank in off)
    if apart and not is_far:
        yield _gradient_draft(recording, apart)
    elif peer is not None and off:
        yield _loss_draft(recording, off, peer)


def _apart(fact: UserModel, peer: UserModel) -> float:
    """Return the difference between the losses, relative to the peer's; 0 if neither rank has one."""
    mine, theirs = fact.same_batch_loss, peer.same_batch_loss
    if mine == theirs:
        return 0.0
    if mine is None or theirs is None:
        return float("inf")
    return abs(mine - theirs) / max(abs(theirs), 1e-12)


def _loss_draft(recording: Recording, off: list[FactAt[UserModel]], peer: FactAt[UserModel]) -> Draft:
    far = [rank for rank in off if _apart(rank.fact, peer.fact) > _LOSS_APART]
    ranks, where = far or off, "different hardware or libraries there"
    worst = max(ranks, key=lambda rank: _apart(rank.fact, peer.fact))
    return likely(
        minority(recording, far) if far else NOBODY,
        (
            f"{peer.fact.model} returns different losses on {on_ranks(recording, ranks)} and"
            f" {on_ranks(recording, [peer])} for the same batch, seed and parameters"
        )
        + ("" if far else " (only rounding)"),
        Evidence(
            text=f"loss on rank {rank_of(worst)}",
            value=worst.fact.same_batch_loss,
            expected=peer.fact.same_batch_loss,
            expected_from=f"rank {rank_of(peer)}'s",
        ),
        in_model_code(
            f"Look for code that depends on the rank, and for {where}"
            if far
            else f"Look for {where} if runs must repeat bit for bit"
        ),
        severity=None if far else Severity.INFO,
    )


def _gradient_draft(recording: Recording, apart: list[FactAt[UserModel]]) -> Draft:
    by_rank = {rank_of(rank): rank for rank in facts(recording)}
    first = apart[0]
    peer = by_rank.get(first.fact.same_batch_peer or 0, first)
    here, there = (rank.fact.hooks for rank in (first, peer))
    pairs = ((first, set(here) - set(there)), (peer, set(there) - set(here)))
    hooks = sorted((f"rank {rank_of(rank)}", hook.parameter, hook.where) for rank, hooks in pairs for hook in hooks)
    by_names = list(grouped((rank.fact.apart, rank) for rank in apart).items())
    hook = f": only {hooks[0][0]} has a hook on {hooks[0][1]}{at(hooks[0][2])}" if hooks else ""
    return likely(
        (*minority(recording, apart), *code(*dict.fromkeys(where for _, _, where in hooks[:4]))),
        f"{first.fact.model} returns different gradients of {names(first.fact.apart)} on"
        f" {on_ranks(recording, apart)} and {on_ranks(recording, [peer])}{hook}",
        (
            *(named(f"different gradient on {on_ranks(recording, group)}:", some) for some, group in by_names[:8]),
            *(Evidence(text=f"only {who} has a hook on {name}{at(where)}") for who, name, where in hooks[:8]),
        ),
        in_model_code("Register the same hooks on every rank, independent of the rank")
        if hooks
        else in_model_code("Look for hooks and autograd functions that depend on the rank"),
        detail="Batch, seed and parameters are the same and the loss is equal on all ranks,"
        " so only the gradient is changed there.",
    )


@rule("DD783", "user-model-searches-unused-in-vain", Consequence.KNOWN, UserModel)
def searches_in_vain(recording: Recording) -> Iterator[Draft]:
    """``find_unused_parameters=True`` is set, although the model uses all its parameters.

    Finds: The factory's options for DDP request the search, but every trainable parameter got its gradient on every
        rank with all tested batches.
    Why: Each step traverses the graph once more, and the buckets keep the order of construction, so they are ready
        late.
    Remedy: Remove the option, unless another batch takes a different path.
    See: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    ranks = [rank for rank in facts(recording) if rank.fact.finds_unused and rank.fact.local]
    passes = (local for rank in ranks for local in rank.fact.local)
    if not ranks or any(local.unused.count + local.unused_everywhere.count for local in passes):
        return
    yield likely(
        NOBODY,
        f"{ranks[0].fact.model} does not need find_unused_parameters=True: all"
        f" {ranks[0].fact.trainable} parameters get a gradient",
        Evidence(text="parameters without a gradient", value=0.0),
        in_model_code("Remove find_unused_parameters, unless another batch takes another path"),
    )
