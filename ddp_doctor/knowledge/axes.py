"""The axes of a mesh, by the names that jobs give them: what they send, and how near their ranks should be.

The order is that of torchtitan's meshes (torchtitan/distributed/parallel_dims.py: pp, dp_replicate, dp_shard, ep, cp,
tp) and of Megatron's groups (megatron/core/parallel_state.py, order="tp-cp-ep-dp-pp", the innermost first): what is
sent in every layer is inside, on neighboring ranks, and what is sent once a step or between stages outside.
"""

from dataclasses import dataclass

from ddp_doctor.knowledge.collectives import ALL_REDUCE

_OF_SHARDS = ("all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Kind:
    """``sends``: the collectives that jobs call on such an axis, rows of knowledge/collectives.py."""

    words: str
    names: tuple[str, ...]
    sends: tuple[str, ...]


#: From the outermost, which sends least often, inwards.
KINDS = (
    Kind("activations between stages", ("pp", "pipe", "pipeline", "stage"), ("send_recv",)),
    Kind(
        "gradients once a step",
        ("dp", "ddp", "data", "replicate", "dp_replicate", "data_parallel"),
        (ALL_REDUCE, "broadcast", *_OF_SHARDS),  # "dp" alone may be FSDP's axis
    ),
    Kind("parameters of every layer", ("shard", "dp_shard", "fsdp", "zero", "sharded"), (*_OF_SHARDS, ALL_REDUCE)),
    Kind("tokens of every expert layer", ("ep", "expert"), ("all_to_all",)),
    Kind(
        "keys and values of every layer",
        ("cp", "sp", "context", "sequence"),
        ("all_gather", "reduce_scatter", "all_to_all", "send_recv"),
    ),
    Kind("activations of every layer", ("tp", "tensor", "mp", "model"), (ALL_REDUCE, *_OF_SHARDS)),
)
#: Of an axis whose name says nothing.
USUAL = (ALL_REDUCE, *_OF_SHARDS)


def depth(name: str) -> int | None:
    """How far inside an axis of this name belongs; None where the name does not tell."""
    return next((depth for depth, kind in enumerate(KINDS) if name.lower() in kind.names), None)


def sends(name: str) -> tuple[str, ...]:
    """The collectives that are called on an axis of this name."""
    at = depth(name)
    return USUAL if at is None else KINDS[at].sends
