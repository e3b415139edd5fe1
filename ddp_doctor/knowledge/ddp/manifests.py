"""The structure of a model on each rank, and the differences between ranks.

DistributedDataParallel pairs the ranks' parameters by their place in the list, so every rank must build the same list.
A manifest is that list, without the values::

    {"parameters": [{"name": "conv.weight", "shape": [8, 3, 3, 3], "dtype": "float32", "requires_grad": true}, …],
     "buffers": [{"name": "bn.running_mean", "shape": [8], "dtype": "float32"}, …]}

It goes over the control store before the model is wrapped: ``probing/module_manifest.py`` reads it from a module and
exchanges it. This module does not need torch.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from ddp_doctor.model.base import Frozen, grouped

What = Literal["parameter", "buffer"]
#: The attributes to compare for each name that all ranks have, in this order.
Attribute = Literal[
    "shape",
    "dtype",
    "device",
    "requires_grad",
    "layout",
    "strides",
    "tied",
    "sparse_grad",
    "ignored",
    "persistent",
    "unit",
    "mesh",
    "placement",
    "precision",
    "resharding",
]
#: missing and extra: the name itself. order: the same names in another order. name: the same list under other names,
#: which DDP does not notice. Other kinds: an attribute of one name.
Kind = Literal["missing", "extra", "name", "order", Attribute]
#: Kinds that describe the calls of fully_shard instead of the model.
OF_SHARDING: tuple[Kind, ...] = ("unit", "mesh", "placement", "precision", "resharding")
_IN_WORDS: Mapping[Kind, str] = {
    "strides": "memory format",
    "precision": "mixed precision",
    "resharding": "reshard_after_forward",
    "unit": "FSDP unit",
}
#: Maximum number of names listed for one difference.
MOST_NAMES = 8


class Tensor(Frozen):
    """A parameter or buffer, without its values.

    ``shape`` is None if the module is lazy and has no shape yet; ``strides`` are None if the tensor is contiguous.
    ``tied_to`` is the first name of the same tensor, which DDP sees once, under that name. ``memory_of`` is the first
    name of another tensor in the same memory.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str = "float32"
    device: str = "cpu"  # its type: the number may differ between ranks
    requires_grad: bool = False
    layout: str = "strided"
    strides: tuple[int, ...] | None = None
    tied_to: str | None = None
    memory_of: str | None = None
    persistent: bool = True  # of a buffer: part of the state_dict
    sparse_grad: bool = False  # of an embedding with sparse=True
    ignored: bool = False  # DDP is configured to ignore it
    # For tensors that fully_shard has sharded; None for others, and if this torch does not report it.
    unit: str | None = None  # the module that was passed to fully_shard
    mesh: str | None = None  # "shard=4, ranks 0 1 2 3"
    placement: str | None = None  # "Shard(dim=0)"
    precision: str | None = None  # MixedPrecisionPolicy
    resharding: str | None = None  # reshard_after_forward, and whether it is offloaded


class Manifest(Frozen):
    """The structure of a module on one rank, in the order of ``named_parameters()`` and ``named_buffers()``."""

    parameters: tuple[Tensor, ...] = ()
    buffers: tuple[Tensor, ...] = ()

    def text(self) -> str:
        """Return the text that is exchanged and hashed. Default values are omitted."""
        return self.model_dump_json(exclude_defaults=True)


class Manifested(Frozen):
    """A rank's manifest as its fact keeps it: only the digest if another rank keeps the manifest or no rank needs it.

    ``manifest`` is set only if the ranks differ, on the first rank that has it.
    """

    digest: str
    manifest: Manifest | None = None


class Difference(Frozen):
    """Parameters or buffers that differ between ranks, all in the same way.

    ``ranks`` have ``here``; ``peer``, the rank to compare with, has ``there``. If ``sure``, more than half of the ranks
    agree with the peer. Otherwise it is unknown which ranks are wrong, and ``ranks`` differ from the lowest rank.
    ``names`` are the first in model order, out of ``count``.
    """

    what: What
    kind: Kind
    names: tuple[str, ...]
    count: int
    ranks: tuple[int, ...]
    peer: int
    sure: bool
    here: str
    there: str

    def words(self, where: str) -> str:
        """Return ``parameter head.weight has shape (5) on rank 1, but (4) on rank 0``. ``where`` names these ranks."""
        name = f"{self.what} {self.names[0]}{f' and {self.count - 1} more' if self.count > 1 else ''}"
        verb = "are" if self.count > 1 else "is"
        if self.kind in ("missing", "extra"):
            return f"{name} {verb} missing on {where if self.kind == 'missing' else f'rank {self.peer}'}"
        both = (self.here, self.there)
        here, there = (f"({value})" if ", " in value and "(" not in value else value for value in both)
        at_peer = f"on rank {self.peer}"
        if self.kind == "order":
            return f"{self.what} {here} on {where}, but {there.rpartition(' ')[2]} {at_peer}"
        if self.kind == "name":
            differ = "names differ" if self.count > 2 else "name differs"
            more = f" ({self.count - 1} more {differ})" if self.count > 1 else ""
            return f"{self.what} {there} of rank {self.peer} is called {here} on {where}{more}"
        if self.kind == "tied":
            tied_to, other = (value if " " in value else f"tied to {value}" for value in (here, there))
            return f"{name} {verb} {tied_to} on {where}, but {other} {at_peer}"
        has = "have" if self.count > 1 else "has"
        kind = _IN_WORDS.get(self.kind, self.kind)
        return f"{name} {has} {kind} {here} on {where}, but {there} {at_peer}"


def digest(manifest: Manifest) -> str:
    """Return a digest that is equal for equal manifests."""
    return hashlib.sha256(manifest.text().encode()).hexdigest()


def kept(rank: int, by_rank: Mapping[int, Manifest]) -> Manifested:
    """Return the manifest, or only its digest, that the fact of ``rank`` keeps."""
    own = by_rank[rank]
    first = min(rank for rank, manifest in by_rank.items() if manifest == own)
    differ = any(manifest != own for manifest in by_rank.values())
    return Manifested(digest=digest(own), manifest=own if differ and first == rank else None)


def restored(by_rank: Mapping[int, Manifested]) -> dict[int, Manifest]:
    """Return the ranks' manifests from their facts, without ranks whose manifest no fact keeps."""
    known = {reported.digest: reported.manifest for reported in by_rank.values() if reported.manifest is not None}
    return {rank: known[reported.digest] for rank, reported in by_rank.items() if reported.digest in known}


@dataclass(frozen=True)
class _Group:
    """Ranks with equal manifests, and one of its two lists by name."""

    ranks: tuple[int, ...]
    tensors: tuple[Tensor, ...]

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def seen_by_ddp(self) -> list[Tensor]:
        return [tensor for tensor in self.tensors if tensor.tied_to is None]


def compare(by_rank: Mapping[int, Manifest]) -> tuple[Difference, ...]:
    """Return the differences between the models of the ranks.

    The ranks vote on each name and attribute, so two ranks that are wrong in two ways do not hide each other.
    """
    found: list[Difference] = []
    lists: tuple[tuple[What, Callable[[Manifest], tuple[Tensor, ...]]], ...] = (
        ("parameter", lambda manifest: manifest.parameters),
        ("buffer", lambda manifest: manifest.buffers),
    )
    for what, tensors_of in lists:
        # Groups ranks with equal lists; the group of the lowest rank is first.
        by_tensors = grouped((tensors_of(by_rank[rank]), rank) for rank in sorted(by_rank))
        groups = [_Group(tuple(ranks), tensors) for tensors, ranks in by_tensors.items()]
        votes = _votes(what, groups) if len(groups) > 1 else ()
        # Joins differences of one kind on the same ranks, the first name in front.
        for alike in grouped(((vote.kind, vote.ranks), vote) for vote in votes).values():
            names = [vote.names[0] for vote in alike]
            found.append(alike[0].model_copy(update={"names": tuple(names[:MOST_NAMES]), "count": len(names)}))
    return tuple(found)


def _votes(what: What, groups: Sequence[_Group]) -> Iterator[Difference]:
    """Yield the differences of each name that is not the same on all ranks."""
    if _differ_in_names_alone(groups):
        for tensors in zip(*(group.seen_by_ddp for group in groups), strict=True):
            called = [(group.ranks, tensor.name) for group, tensor in zip(groups, tensors, strict=True)]
            for vote in _vote(what, "name", "", called):
                yield vote.model_copy(update={"names": (vote.there,)})
        return
    names = dict.fromkeys(tensor.name for group in groups for tensor in group.tensors)
    for name in names:
        presence = [(group.ranks, "there" if name in group.by_name else "none") for group in groups]
        for vote in _vote(what, "missing", name, presence):
            yield vote if vote.here == "none" else vote.model_copy(update={"kind": "extra"})
        having = [(group.ranks, group.by_name[name]) for group in groups if name in group.by_name]
        for attribute in _ATTRIBUTES:
            answers = [(ranks, _described(tensor, attribute)) for ranks, tensor in having]
            yield from _vote(what, attribute, name, answers)
    yield from _order(what, groups)


def _differ_in_names_alone(groups: Sequence[_Group]) -> bool:
    """Return True if the lists differ only in names. DDP pairs by place and treats them as equal."""
    bare = {
        tuple(tuple(_described(tensor, attribute) for attribute in _ATTRIBUTES) for tensor in group.seen_by_ddp)
        for group in groups
    }
    sets = {frozenset(group.by_name) for group in groups}
    return len(bare) == 1 and len(sets) == len(groups)


def _order(what: What, groups: Sequence[_Group]) -> Iterator[Difference]:
    """Yield the first name at a different place, if the names that all groups have are in another order."""
    common = set.intersection(*(set(group.by_name) for group in groups))
    orders = [tuple(tensor.name for tensor in group.tensors if tensor.name in common) for group in groups]
    for vote in _vote(what, "order", "", list(zip((group.ranks for group in groups), orders, strict=True))):
        theirs, wanted = (
            next(order for group, order in zip(groups, orders, strict=True) if rank in group.ranks)
            for rank in (vote.ranks[0], vote.peer)
        )
        place = next(index for index, pair in enumerate(zip(theirs, wanted, strict=True)) if len(set(pair)) > 1)
        here, there = (f"number {place} is {order[place]}" for order in (theirs, wanted))
        yield vote.model_copy(update={"names": (wanted[place],), "here": here, "there": there})


def _vote(
    what: What, kind: Kind, name: str, answers: Sequence[tuple[tuple[int, ...], Hashable]]
) -> Iterator[Difference]:
    """Yield a difference for each answer that is not the majority's or, without one, not the lowest rank's."""
    ranks = grouped((answer, rank) for voting, answer in answers for rank in voting)
    if len(ranks) < 2:
        return
    voters = sum(map(len, ranks.values()))
    major = next((answer for answer, members in ranks.items() if 2 * len(members) > voters), None)
    sure = major is not None
    right = major if sure else min(ranks, key=lambda answer: min(ranks[answer]))
    for answer, members in ranks.items():
        if answer != right:
            yield Difference(
                what=what,
                kind=kind,
                names=(name,),
                count=1,
                ranks=tuple(sorted(members)),
                peer=min(ranks[right]),
                sure=sure,
                here=str(answer),
                there=str(right),
            )


_ATTRIBUTES: tuple[Attribute, ...] = get_args(Attribute)
#: Texts for attributes whose value alone is not clear.
_DESCRIBED: Mapping[Attribute, Callable[[Tensor], str]] = {
    "shape": lambda tensor: "none yet" if tensor.shape is None else f"({', '.join(map(str, tensor.shape))})",
    "strides": lambda tensor: (
        "contiguous" if tensor.strides is None else f"strides ({', '.join(map(str, tensor.strides))})"
    ),
    "tied": lambda tensor: tensor.tied_to or tensor.memory_of or "a tensor of its own",
    "unit": lambda tensor: "none" if tensor.unit is None else tensor.unit or "(the model)",
}


def _described(tensor: Tensor, attribute: Attribute) -> str:
    describe = _DESCRIBED.get(attribute)
    return describe(tensor) if describe else str(getattr(tensor, attribute))
