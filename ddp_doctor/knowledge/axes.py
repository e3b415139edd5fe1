"""The axes of a mesh by the names that jobs give them: what they send, and how near their ranks should be.

The order follows torchtitan's meshes (torchtitan/distributed/parallel_dims.py: pp, dp_replicate, dp_shard, ep, cp, tp)
and Megatron's groups (megatron/core/parallel_state.py, order="tp-cp-ep-dp-pp", the innermost first). Data sent in every
layer is inside, on neighboring ranks. Data sent once per step or between stages is outside.
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


#: From the outermost axis, which sends least often, to the innermost.
KINDS = (
    Kind("activations between stages", ("pp", "pipe", "pipeline", "stage"), ("send_recv",)),
    Kind(
        "gradients once a step",
        ("dp", "ddp", "data", "replicate", "dp_replicate", "data_parallel"),
        (ALL_REDUCE, "broadcast", *_OF_SHARDS),  # "dp" may also be FSDP's axis
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
#: The collectives of an axis with an unknown name.
USUAL = (ALL_REDUCE, *_OF_SHARDS)


def depth(name: str) -> int | None:
    """Return how far inside an axis of this name belongs, or None if the name is unknown."""
    return next((depth for depth, kind in enumerate(KINDS) if name.lower() in kind.names), None)


def sends(name: str) -> tuple[str, ...]:
    """Return the collectives that jobs call on an axis of this name."""
    at = depth(name)
    return USUAL if at is None else KINDS[at].sends
