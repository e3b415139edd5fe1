"""DD775, DD776, DD783: parameters that get no gradient, on all ranks or on some."""

from collections.abc import Iterator

from ddp_doctor.facts.ddp.user_model import LocalPass, UserModel
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.torch_calls import in_model_code
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.ranks import rank_of
from ddp_doctor.wording.user_model import calls, code, facts, minority, names, none_expected, on_ranks

_Passes = list[tuple[FactAt[UserModel], LocalPass]]
_FIND_UNUSED = in_model_code(
    "If it is meant so: DistributedDataParallel(..., find_unused_parameters=True)",
    cost="A walk over the graph in each step, and buckets in the order of construction",
)


@rule("DD775", "user-model-has-unused-parameters", Severity.ERROR, UserModel)
def unused_everywhere(recording: Recording) -> Iterator[Draft]:
    """Parameters that get no gradient on any rank.

    Finds: Trainable parameters that took no part in the loss of a batch, on all ranks: a head that is not called, a
        layer whose output is dropped. Information where the factory's options for DDP say
        ``find_unused_parameters=True``, or the model is in fully_shard.
    Why: DDP waits for every gradient: the second step raises "Expected to have finished reduction in the prior
        iteration".
    Remedy: Remove or freeze them before wrapping; or ``find_unused_parameters=True``, which costs time in each step.
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
        none_expected(
            "parameters without a gradient", unused.count, "what is trained" if fact.sharded else "what DDP waits for"
        ),
        in_model_code("Remove them, or freeze them (requires_grad_(False)) before the model is wrapped"),
        *(() if is_harmless else (_FIND_UNUSED,)),
        detail=f"Unused with batch {local.step} on every rank, {unused.count} of {fact.trainable}"
        " trainable parameters.",
        severity=Severity.INFO if is_harmless else None,
    )


@rule("DD776", "user-model-takes-unequal-graphs", Severity.ERROR, UserModel)
def unequal_graphs(recording: Recording) -> Iterator[Draft]:
    """Ranks on which other parameters take part than on the rest.

    Finds: With the batch of one step some ranks use parameters that others leave out, and the first submodule whose
        call differs, with the line that calls it. Information where the factory's options for DDP say
        ``find_unused_parameters=True``, or fully_shard was told by ``set_reduce_scatter_unused_params``.
    Why: DDP's buckets wait for a gradient that never comes on those ranks, while the others wait in the all-reduce: the
        job hangs, or the second step raises.
    Remedy: Let every rank take the same path; or ``find_unused_parameters=True``, which counts a missing gradient as
        zero.
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
        reason = f"; rank {rank_of(rank)} {calls(first.here)} where rank {first.peer} {calls(first.there)}"
    elif frozen:
        reason = f"; the forward takes requires_grad from {names(frozen[0][1])} there"
    called = [call.where for _, parting in parted for call in (parting.here, parting.there) if call is not None]
    return proved(
        (*minority(recording, apart), *code(*called[:1])),
        f"{names(local.unused)} of {fact.model} {'gets' if local.unused.count == 1 else 'get'} no gradient on"
        f" {_where(recording, lacking)}{reason}",
        tuple(
            Evidence(
                text=f"without a gradient on rank {rank_of(rank)}: {names(here.unused)}", value=float(here.unused.count)
            )
            for rank, here in lacking[:8]
        )
        + tuple(
            Evidence(text=f"the forward took requires_grad away on rank {rank_of(rank)}: {names(some)}")
            for rank, some in frozen[:8]
        ),
        in_model_code("Let all ranks take the same path: decide by what they share, not by the rank or its data"),
        *(() if fact.finds_unused or fact.sharded else (_FIND_UNUSED,)),
        detail=f"With batch {local.step} the ranks take different paths through the model."
        + (
            f" {'set_reduce_scatter_unused_params' if sharded else 'find_unused_parameters'} is set, so a gradient that"
            " is missing counts as zero."
            if is_harmless
            else " fully_shard gathers and reduces what a rank uses: the collectives do not match, and the job hangs."
            if sharded
            else " With DDP's default options the job hangs or fails in its second step."
        ),
        severity=Severity.INFO if is_harmless else None,
    )


def _where(recording: Recording, lacking: _Passes) -> str:
    """The ranks that lack the same parameters as the first one, then the ranks that lack others."""
    first = lacking[0][1].unused
    same = [rank for rank, here in lacking if here.unused == first]
    others = [rank for rank, here in lacking if here.unused != first]
    where = on_ranks(recording, same)
    return f"{where}, and others on {on_ranks(recording, others)}" if others else f"{where} only"


@rule("DD783", "user-model-searches-unused-in-vain", Severity.INFO, UserModel)
def searches_in_vain(recording: Recording) -> Iterator[Draft]:
    """``find_unused_parameters=True`` for a model whose parameters are all used.

    Finds: The factory's options for DDP ask for the search, and every trainable parameter got its gradient on every
        rank with all batches that were looked at.
    Why: Each step walks the graph once more, and the buckets keep the order of construction, so that they are ready
        late.
    Remedy: Leave the option out, unless another batch takes another path.
    See: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    ranks = [rank for rank in facts(recording) if rank.fact.finds_unused and rank.fact.local]
    used = [
        rank
        for rank in ranks
        if not any(local.unused.count + local.unused_everywhere.count for local in rank.fact.local)
    ]
    if not ranks or len(used) < len(ranks):
        return
    yield likely(
        NOBODY,
        f"{ranks[0].fact.model} does not need find_unused_parameters=True: all {ranks[0].fact.trainable}"
        " parameters get a gradient",
        Evidence(text="parameters without a gradient", value=0.0),
        in_model_code("Leave find_unused_parameters out, unless another batch takes another path"),
    )
