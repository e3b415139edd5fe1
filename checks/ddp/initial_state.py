"""initial_state: whether all ranks have the same model, and wrapping gives them rank 0's values.

Raw input: on each rank, a small model whose values come from the rank's own seed::

                                      before wrapping     after wrapping
    weight      float32, rank 1       5d41402abc4b2a76    7d793037a0760186   = rank 0's before
    low         bfloat16, rank 1      b7a875fc1ea228b9    9f14025af0065b30   = rank 0's before
    step        int64, no dimension   e4da3b7fbbce2345    c4ca4238a0b92382   = rank 0's before

Before that, the probe reads the list of its parameters and buffers (knowledge/ddp/manifests.py), which the ranks
compare over the control store: with some differences, DDP hangs, with others it aborts, and the rest it ignores.

Why it matters: the ranks train one model only if they start with the same one. DDP broadcasts rank 0's values when it
wraps, so seeds may differ; without DDP they must be equal. A second model, made from one seed on all ranks, shows
whether equal seeds would be enough.
"""

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ddp_doctor.facts.ddp.model_state import Buffers, InitialState
from ddp_doctor.knowledge.ddp.manifests import Kind, compare, kept, restored
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Consequence, Level, Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.probing import module_manifest
from ddp_doctor.probing.rank_identity import finish
from ddp_doctor.remedies.torch_calls import of_stock_ddp
from ddp_doctor.wording.findings import finding, likely
from ddp_doctor.wording.nodes import and_more
from ddp_doctor.wording.ranks import rank_at, rank_culprits, ranks_at

#: The consequence of each difference, seen with torch 2.13 over gloo on three ranks of which rank 1 differed: see
#: docs/explanation/ddp-semantics.md. The first applies to differences that DDP does not detect, because it matches the
#: lists by position.
_MIXED = "DDP uses the position in the list and raises no error, so it averages unrelated parameters."
_REFUSED = "DDP rejects such a model, but its message only counts parameters and names none."
_UNSEEN = "DDP does not compare it. Bytes arrive in the wrong place or form, a rank aborts, or all ranks hang."
_CONSEQUENCES: dict[Kind, str] = {
    "missing": _REFUSED,
    "extra": _REFUSED,
    "tied": "DDP counts a shared parameter once, so the ranks' lists have different lengths and DDP fails.",
    "shape": "The rank that differs from rank 0 raises an error, and other ranks lose their connections or wait.",
    "strides": "The rank that differs from rank 0 raises an error, and other ranks lose their connections or wait.",
    "order": _MIXED,
    "name": "DDP uses the position in the list, not names, which is right only if both are the same layer.",
    "requires_grad": (
        "DDP averages trained parameters by position. It fails with unequal"
        " numbers, and averages unrelated parameters with equal numbers."
    ),
    "persistent": "Only the state_dict of some ranks has it.",
}
#: Differences of parameters that DDP does not detect.
_SILENT = ("order", "name")


@rule("DD740", "model-differs-between-ranks", Consequence.WRONG, InitialState)
def model_differs_between_ranks(recording: Recording) -> Iterator[Draft]:
    """Finds: A parameter is missing on some ranks, or has another shape, type, device or requires_grad on them. The
        ranks compare lists over the control store before the model is wrapped.
    Why: Wrapping this model raises on some ranks and hangs or aborts on others, and torch's message lists parameters by
        number, without a name, or reports a connection failure.
    Remedy: Your code does not build this model: compare the versions of torch on these ranks, and look for code that
        replaces parts of it. With three or more ranks, the different one is named.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp
    """
    yield from _drafts(recording, "parameter", silent=False)


@rule("DD741", "parameter-order-differs-between-ranks", Consequence.WRONG, InitialState)
def parameter_order_differs_between_ranks(recording: Recording) -> Iterator[Draft]:
    """Finds: The ranks have the same parameters in another order, or other names at the same positions.
    Why: DDP matches parameters by position. If shapes agree, no error is raised: a layer gets the values and gradients
        of another one, and the ranks train different models.
    Remedy: Your code does not build this model: compare the versions of torch on these ranks. In your own model, the
        cause is a set, an unsorted directory or a layer under ``if rank``.
    See: https://pytorch.org/docs/stable/notes/ddp.html
    """
    yield from _drafts(recording, "parameter", silent=True)


@rule("DD742", "buffers-differ-between-ranks", Consequence.WRONG, InitialState)
def buffers_differ_between_ranks(recording: Recording) -> Iterator[Draft]:
    """Finds: A buffer is missing on some ranks, or has another shape, type, device, order or name on them.
    Why: DDP compares parameters but never buffers. It broadcasts them as one block of bytes: a rank aborts, or silently
        gets the values of another buffer.
    Remedy: Your code does not build this model: compare the versions of torch on these ranks, and look for code that
        replaces parts of it. With three or more ranks, the different one is named.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    yield from _drafts(recording, "buffer")


def _drafts(recording: Recording, what: str, *, silent: bool | None = None) -> Iterator[Draft]:
    models = {rank.rank or 0: rank.fact.model for rank in recording.facts(InitialState)}
    found = [difference for difference in compare(restored(models)) if difference.what == what]
    offered = of_stock_ddp(recording, "initial_state")[-1:]  # without NCCL: no data has been sent yet
    for difference in found:
        if silent is not None and silent is not (difference.kind in _SILENT):
            continue
        ranks, peer = ranks_at(recording, difference.ranks), rank_at(recording, difference.peer)
        left = difference.count - len(difference.names)
        listed = f"It is {', '.join(difference.names)}{and_more(left)}. "
        unsure = "" if difference.sure else " There is no majority, so it is unknown which is wrong."
        unseen = difference.what == "buffer" and difference.kind != "persistent"
        consequence = _UNSEEN if unseen else _CONSEQUENCES.get(difference.kind, _UNSEEN)
        yield finding(
            rank_culprits(recording, InitialState, difference.ranks if difference.sure else ()),
            f"ddp-doctor's own model differs between {ranks} and {peer}: {difference.words(ranks)}",
            Evidence(
                text=f"{difference.kind} of {difference.names[0]}: {difference.here} on {ranks},"
                f" {difference.there} on {peer}"
            ),
            *offered,
            confidence=Confidence.PROVED if difference.sure else Confidence.LIKELY,
            detail=f"{listed if difference.count > 1 else ''}Compare {ranks} with {peer}.{unsure} {consequence}",
            severity=Severity.WARNING if difference.kind in ("name", "persistent") else None,
        )


@rule("DD743", "initial-state-not-from-rank-0", Consequence.WRONG, InitialState)
def initial_state_not_from_rank_0(recording: Recording) -> Iterator[Draft]:
    """Finds: Every rank creates a model from its own seed. After wrapping, a parameter or buffer (bf16, frozen, tied,
        strided, integer, without dimensions, not persistent) differs from rank 0's, compared bit for bit.
    Why: With DDP, seeds may differ, because wrapping broadcasts rank 0's values. If it does not, the ranks average the
        gradients of different models, and a falling loss hides it.
    Remedy: This check does not run your code: look for code that replaces parts of torch, and for ``init_sync=False``.
        With NCCL, repeat it with NCCL_PROTO=Simple.
    See: https://pytorch.org/docs/stable/notes/ddp.html
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    facts = {rank.rank or 0: rank.fact for rank in recording.facts(InitialState)}
    # DD712 already reports these ranks, with other parameters: one fault, one finding.
    reported = {rank.rank or 0 for rank in recording.facts(Buffers) if rank.fact.parameters_off}
    off = [
        (rank, name)
        for rank, fact in facts.items()
        if fact.source_rank in facts and rank not in reported
        for name, got in fact.after.items()
        if got != facts[fact.source_rank].before.get(name)
    ]
    # Rank 0 receives nothing, so only another rank with right values shows that the broadcast worked.
    receivers = {rank for rank, fact in facts.items() if rank != fact.source_rank}
    blameless = receivers <= {rank for rank, _ in off} | reported
    for holds, group in grouped((_holds(rank, name, facts), (rank, name)) for rank, name in off).items():
        (rank, name), names, ranks = group[0], sorted({name for _, name in group}), sorted({rank for rank, _ in group})
        source, where = facts[rank].source_rank, ranks_at(recording, ranks)
        held = holds if len(ranks) > 1 else holds.replace("each rank", "the rank")
        yield likely(
            rank_culprits(recording, InitialState, () if blameless else ranks),
            f"After DDP wrapping, parameters or buffers on {where} differ from rank {source}'s: {held}",
            Evidence(
                text=f"fingerprint of {name} on rank {rank}: {facts[rank].after[name]}, and"
                f" {facts[source].before.get(name, 'none')} on rank {source} before",
                expected_from=f"rank {source}'s, broadcast by DDP",
            ),
            *of_stock_ddp(recording, "initial_state"),
            detail=f"Wrong in ddp-doctor's own model: {', '.join(names)} on {where}. Your"
            " code was not involved. Tensors without broadcast start from the rank's"
            " own seed.",
        )


def _holds(rank: int, name: str, facts: Mapping[int, InitialState]) -> str:
    got = facts[rank].after[name]
    origin = next((source for source, fact in facts.items() if fact.before.get(name) == got), None)
    alone = not any(fact.after.get(name) == got for peer, fact in facts.items() if peer != rank)
    if origin is None:
        return "their values match no rank"
    return "each rank kept its own values" if origin == rank and alone else f"they hold rank {origin}'s values"


_SAME_SEED = 20


def probe(ctx: RankContext) -> InitialState:
    """Wrap a model that every rank made from its own seed."""
    fact = wrap_and_compare(ctx, seeded_model(ctx, _SAME_SEED + 1 + ctx.rank))
    return fact.model_copy(update={"same_seed": whole(fingerprints(seeded_model(ctx, _SAME_SEED)))})


def wrap_and_compare(ctx: RankContext, module: Any) -> InitialState:
    """Return a model's state before and after wrapping; it is wrapped only if all ranks have the same model."""
    own = module_manifest.read(module)
    by_rank = module_manifest.of_all_ranks(ctx, own)
    fact = InitialState(world_size=ctx.world_size, source_rank=ctx.ranks[0], model=kept(ctx.rank, by_rank))
    if any(manifest != own for manifest in by_rank.values()):
        return fact
    before = fingerprints(module)
    wrapped(ctx, module, sync=True)
    after = fingerprints(module)
    # Measured after the first wrapping, which is slower because NCCL connects for its first broadcast.
    bare_s, wrap_s = (wrapped(ctx, module, sync=sync) for sync in (False, True))
    tensors = (*module.parameters(), *module.buffers())
    return fact.model_copy(
        update={
            "before": before,
            "after": after,
            "wrap_s": wrap_s,
            "wrap_without_sync_s": bare_s,
            "size_bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        }
    )


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the slowest rank's seconds for the broadcast, and the number of ranks that an equal seed makes equal."""
    facts = [rank.fact for rank in recording.facts(InitialState)]
    synced = [fact for fact in facts if fact.wrap_s is not None]
    labels: dict[str, str | int | float] = {"ranks": len(facts)}
    if synced:
        spent = max(fact.wrap_s - (fact.wrap_without_sync_s or 0.0) for fact in synced if fact.wrap_s)
        size = {"bytes": synced[0].size_bytes}
        yield Measurement(name="initial_state_broadcast", value=max(spent, 0.0), unit="s", labels=labels | size)
    if facts:
        equal = sum(fact.same_seed == facts[0].same_seed for fact in facts)
        yield Measurement(name="initial_state_equal_by_seed", value=equal, unit="ranks", labels=labels)


#: 62 random bits per integer, so two ranks never start with equal ones by chance.
_MOST = 2**62


def seeded_model(ctx: RankContext, seed: int) -> Any:
    """Return a torch module on the rank's device, without changing torch's default generator."""
    import torch

    made = torch.Generator().manual_seed(seed)
    model: Any = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.randn(48, 32, generator=made))
    model.low = torch.nn.Parameter(torch.randn(256, generator=made).bfloat16())
    model.frozen = torch.nn.Parameter(torch.randn(64, generator=made), requires_grad=False)
    # Not contiguous, like a convolution in channels_last.
    model.strided = torch.nn.Parameter(torch.randn(16, 8, generator=made).t())
    model.head = torch.nn.Linear(32, 48, bias=False)
    model.head.weight = model.weight
    model.register_buffer("running", torch.randn(64, generator=made))
    model.register_buffer("counts", torch.randint(_MOST, (8,), generator=made))
    model.register_buffer("step", torch.randint(_MOST, (), generator=made))
    model.register_buffer("scale", torch.randn(32, generator=made).half())
    model.register_buffer("mask", torch.randint(2, (128,), generator=made).bool(), persistent=False)
    return model.to(ctx.device)


def fingerprints(module: Any) -> dict[str, str]:
    """Return a fingerprint of the bits of each parameter and buffer, by name; tied names have their own entries."""
    import torch

    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    flat = {name: tensor.detach().cpu().contiguous().reshape(-1) for name, tensor in named}
    return {name: _shortened(bytes(values.view(torch.uint8).tolist())) for name, values in flat.items()}


def whole(prints: Mapping[str, str]) -> str:
    """Return one fingerprint of the entire model."""
    return _shortened(repr(sorted(prints.items())).encode())


def _shortened(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def wrapped(ctx: RankContext, module: Any, *, sync: bool) -> float | None:
    """Return the seconds to wrap the module in DDP, or None if this torch cannot skip the broadcast."""
    from torch.nn.parallel import DistributedDataParallel

    options: dict[str, Any] = {} if sync else {"init_sync": False}
    if not options.keys() <= inspect.signature(DistributedDataParallel.__init__).parameters.keys():
        return None
    with ctx.step("ddp_construct", "with rank 0's values" if sync else "with the rank's own values"):
        started = ctx.clock()
        DistributedDataParallel(module, process_group=ctx.group, **options)
        finish(ctx.device)
    return ctx.clock() - started


CHECK = Check(
    id="initial_state",
    title="All ranks start from rank 0's model",
    where=Where.RANK,
    probe=probe,
    facts=(InitialState,),
    rules=(
        model_differs_between_ranks,
        parameter_order_differs_between_ranks,
        buffers_differ_between_ranks,
        initial_state_not_from_rank_0,
    ),
    level=Level.STANDARD,
    min_ranks=2,
    cost_s=0.05,
    measurements=measurements,
)
