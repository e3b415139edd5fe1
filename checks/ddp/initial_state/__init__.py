"""initial_state: do all ranks have the same model, and does wrapping give them rank 0's values?

What the probe reads on each rank is a small model whose values come from the rank's own seed::

                                      before wrapping     after wrapping
    weight      float32, rank 1       5d41402abc4b2a76    7d793037a0760186   = rank 0's before
    low         bfloat16, rank 1      b7a875fc1ea228b9    9f14025af0065b30   = rank 0's before
    step        int64, no dimension   e4da3b7fbbce2345    c4ca4238a0b92382   = rank 0's before

and, before that, the list of its parameters and buffers (knowledge/ddp/manifests.py), which the ranks compare
over the control store: DDP hangs on some differences, aborts on others and ignores the rest.

Why it matters: the ranks train one model only if they start with the same one. DDP broadcasts rank 0's values
when it wraps, so seeds may differ; without DDP they must be equal. A second model, made from one seed on all
ranks, shows whether a seed would be enough.
"""

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ddp_doctor.checks.ddp.initial_state import rules
from ddp_doctor.facts.ddp.model_state import InitialState
from ddp_doctor.knowledge.ddp.manifests import kept
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing import module_manifest
from ddp_doctor.probing.rank_identity import finish

_SAME_SEED = 20


def probe(ctx: RankContext) -> InitialState:
    """Wrap a model that every rank made from its own seed."""
    fact = wrap_and_compare(ctx, seeded_model(ctx, _SAME_SEED + 1 + ctx.rank))
    return fact.model_copy(update={"same_seed": whole(fingerprints(seeded_model(ctx, _SAME_SEED)))})


def wrap_and_compare(ctx: RankContext, module: Any) -> InitialState:
    """A model before and after wrapping; it is wrapped only where all ranks have the same."""
    own = module_manifest.read(module)
    by_rank = module_manifest.of_all_ranks(ctx, own)
    fact = InitialState(world_size=ctx.world_size, source_rank=ctx.ranks[0], model=kept(ctx.rank, by_rank))
    if any(manifest != own for manifest in by_rank.values()):
        return fact
    before = fingerprints(module)
    wrapped(ctx, module, sync=True)
    after = fingerprints(module)
    # Time it after a first wrapping, which is slower: NCCL connects for its first broadcast.
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
    """Seconds that the slowest rank needs for the broadcast, and on how many ranks a seed is enough."""
    facts = [rank.fact for rank in recording.facts(InitialState)]
    synced = [fact for fact in facts if fact.wrap_s is not None]
    labels: dict[str, str | int | float] = {"ranks": len(facts)}
    if synced:
        spent = max(fact.wrap_s - (fact.wrap_without_sync_s or 0.0) for fact in synced if fact.wrap_s)
        size = {"bytes": synced[0].size_bytes}
        yield Measurement(
            name="initial_state_broadcast", value=max(spent, 0.0), unit="s", labels=labels | size
        )
    if facts:
        equal = sum(fact.same_seed == facts[0].same_seed for fact in facts)
        yield Measurement(name="initial_state_equal_by_seed", value=equal, unit="ranks", labels=labels)


#: 64 random bits: two ranks never start with the same ones by chance.
_MOST = 2**62


def seeded_model(ctx: RankContext, seed: int) -> Any:
    """A torch module on the rank's device; torch's own random numbers are left as they are."""
    import torch

    made = torch.Generator().manual_seed(seed)
    model: Any = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.randn(48, 32, generator=made))
    model.low = torch.nn.Parameter(torch.randn(256, generator=made).bfloat16())
    model.frozen = torch.nn.Parameter(torch.randn(64, generator=made), requires_grad=False)
    # As of a convolution in channels_last: not contiguous.
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
    """Name -> a fingerprint of the parameter's or buffer's bits; a tied name has its own entry."""
    named = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    return {name: _fingerprint(tensor) for name, tensor in named}


def whole(prints: Mapping[str, str]) -> str:
    """One fingerprint of a whole model."""
    return _shortened(repr(sorted(prints.items())).encode())


def _fingerprint(tensor: Any) -> str:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return _shortened(bytes(flat.view(torch.uint8).tolist()))


def _shortened(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def wrapped(ctx: RankContext, module: Any, *, sync: bool) -> float | None:
    """Seconds to wrap the module in DDP; None where this torch cannot leave the broadcast out."""
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
    rules=rules_in(rules),
    level=Level.STANDARD,
    min_ranks=2,
    cost_s=0.05,
    measurements=measurements,
)
