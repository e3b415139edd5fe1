"""What can be seen of a DDP-wrapped model: its buckets, and which parameters a loss depends on.

Neither is public. The buckets come from the call that torch's own ``Join`` relies on
(torch/csrc/distributed/c10d/reducer.cpp, ``get_grad_buckets``), which hands out ``GradBucket`` objects whose
``index()`` and ``parameters()`` are public; where a release lacks it, nothing is known. What a loss depends
on is read from its graph: ``grad_fn.next_functions`` down to the nodes that accumulate gradients.
"""

from typing import Any


def buckets(model: Any) -> dict[str, int]:
    """The bucket of each parameter that a DDP-wrapped model reduces now, by name; empty if unknown."""
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    try:
        found = model.reducer._get_zeros_like_grad_buckets()  # noqa: SLF001 - see above
        return {names[id(one)]: bucket.index() for bucket in found for one in bucket.parameters()}
    except (AttributeError, KeyError, RuntimeError):
        return {}


def used(module: Any, loss: Any) -> frozenset[str]:
    """The names of the parameters that this rank's loss depends on."""
    reached, waiting = set(), [loss.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        reached.add(id(getattr(node, "variable", None)))
        new = [one for one, _ in node.next_functions if one not in seen]
        seen.update(new)
        waiting += new
    return frozenset(name for name, parameter in module.named_parameters() if id(parameter) in reached)


def unshared(model: Any) -> tuple[str, ...]:
    """The parameters whose gradients are memory of their own, though their bucket holds others too."""
    layout = buckets(model)
    alone = {bucket for bucket in layout.values() if list(layout.values()).count(bucket) == 1}
    return tuple(
        name
        for name, parameter in model.module.named_parameters()
        if name in layout
        and layout[name] not in alone
        and parameter.grad is not None
        and parameter.grad.untyped_storage().nbytes() == parameter.grad.nbytes
    )
