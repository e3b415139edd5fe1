"""The manifest of a torch module, and the manifests of all ranks, exchanged before a difference can cause a hang."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ddp_doctor.knowledge.ddp.manifests import Manifest, Tensor, digest
from ddp_doctor.model.context import RankContext


def read(module: Any) -> Manifest:
    """Return the parameters and buffers of this module, in the order in which DDP takes them."""
    import torch

    parts = dict(module.named_modules(remove_duplicate=False))
    # DDP asks each module the same question (torch/nn/parallel/distributed.py, _build_params_for_reducer).
    embeddings = torch.nn.Embedding | torch.nn.EmbeddingBag
    # Names with properties that only the module knows: not in a state_dict, with sparse gradients, or ignored by DDP.
    marks = (
        frozenset(_names(parts, lambda part: getattr(part, "_non_persistent_buffers_set", ()))),
        frozenset(_names(parts, lambda part: ("weight",) if isinstance(part, embeddings) and part.sparse else ())),
        frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ())),
    )
    return Manifest(
        parameters=_tensors(module.named_parameters(remove_duplicate=False), *marks),
        buffers=_tensors(module.named_buffers(remove_duplicate=False), *marks),
    )


def of_all_ranks(ctx: RankContext, own: Manifest) -> dict[int, Manifest]:
    """Return each rank's manifest, by original rank. It uses the control store, which works if DDP would hang.

    All ranks must make the same call. If all manifests are equal, only digests are sent; otherwise, each manifest once.
    """
    own_digest = digest(own)
    with ctx.step("compare_models", "digests of the manifests"):
        digests = ctx.exchange("manifest-digest", own_digest)
    if set(digests) == {own_digest}:
        return dict.fromkeys(ctx.ranks, own)
    speaks = digests.index(own_digest) == ctx.group_rank
    with ctx.step("compare_models", "manifests"):
        texts = ctx.exchange("manifest", own.text() if speaks else "")
    known = {own_digest: own}
    for place, digest_of_rank in enumerate(digests):
        if digest_of_rank not in known:
            known[digest_of_rank] = Manifest.model_validate_json(texts[place])
    return {rank: known[digest_of_rank] for rank, digest_of_rank in zip(ctx.ranks, digests, strict=True)}


def _names(parts: Mapping[str, Any], of: Callable[[Any], Iterable[str]]) -> Iterator[str]:
    return (f"{prefix}.{name}" if prefix else name for prefix, part in parts.items() for name in of(part))


def _tensors(
    named: Iterable[tuple[str, Any]], transient: frozenset[str], sparse: frozenset[str], ignored: frozenset[str]
) -> tuple[Tensor, ...]:
    """Return the tensors of a module; a repeated tensor refers to its first name."""
    import torch
    from torch.nn.parameter import is_lazy

    first: dict[int, str] = {}
    memory: dict[int, str] = {}
    found = []
    for name, tensor in named:
        lazy, tied_to = is_lazy(tensor), first.get(id(tensor))
        address = 0  # start of its memory; 0 without own memory: lazy, meta, sparse, some subclasses
        if not lazy:
            with suppress(NotImplementedError, RuntimeError):
                address = int(tensor.untyped_storage().data_ptr())
        plain = lazy or tensor.layout != torch.strided or tensor.is_contiguous()
        described = Tensor(
            name=name,
            tied_to=tied_to,
            memory_of=memory.get(address) if address and tied_to is None else None,
            persistent=name not in transient,
            sparse_grad=name in sparse,
            ignored=name in ignored,
            shape=None if lazy else tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=tensor.device.type,
            requires_grad=tensor.requires_grad,
            layout=str(tensor.layout).removeprefix("torch."),
            strides=None if plain else tuple(tensor.stride()),
        )
        first.setdefault(id(tensor), name)
        memory.setdefault(address, name)
        found.append(described)
    return tuple(found)
