"""What of a batch are the arguments of a forward: in a data set's ``(inputs, target)`` the target is none.

forward(self, x)               (inputs, target)   the target is for the loss
forward(self, ids, labels)     (ids, labels)      both are arguments
forward(self, x, mask=None)    (inputs, target)   a number for each sample is no mask
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ddp_doctor.probing.user_model.user_code import Loaded, Misuse, uncompiled

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
_WITH_A_LOSS = (
    "a dict with a loss: {'model': model, 'make_batch': make_batch,"
    " 'loss': lambda output, batch: cross_entropy(output, batch[1])}"
)


@dataclass(frozen=True)
class Form:
    """What the model takes, None where its signature does not tell, and the loss that the user gave."""

    forward: inspect.Signature | None = None
    loss: Callable[[Any, Any], Any] | None = None


def form_of(loaded: Loaded) -> Form:
    """How the model takes a batch."""
    bare = uncompiled(loaded.model)
    signature = None
    if not bare._forward_pre_hooks:  # noqa: SLF001 - a hook may make other arguments of them
        with suppress(TypeError, ValueError):  # of code that is no Python's
            signature = inspect.signature(bare.forward)
    return Form(signature, loaded.loss)


def is_several(given: Any) -> bool:
    """Whether a batch is a tuple or list of things, and no packed sequence or the like."""
    return isinstance(given, tuple | list) and not callable(getattr(given, "to", None))


def arguments(given: Any, form: Form) -> Arguments:
    """The arguments of forward. Raises Misuse where it does not take them, or takes the target for something else."""
    choices = list(_choices(given, form))
    if form.forward is None:
        return choices[0]
    chosen = next((choice for choice in choices if not _problem(form.forward, choice)), None)
    if _binds_without_last(given, form) and (chosen is None or _cannot_be(_last_parameter(given, form), given[-1])):
        raise no_argument(given, form)
    if chosen is None:
        names = ", ".join(map(repr, given)) if isinstance(given, Mapping) else f"{len(choices[0][0])} arguments"
        raise Misuse(
            f"make_batch returns {names}, which forward({', '.join(form.forward.parameters)}) does not take"
            f" ({_problem(form.forward, choices[0])}); what only the loss needs takes {_WITH_A_LOSS}"
        )
    return chosen


def may_hold_a_target(given: Any, form: Form) -> bool:
    """Whether forward takes all but the last thing of a batch, too, and does not call that one a target itself."""
    last = _last_parameter(given, form) if _binds_without_last(given, form) else None
    return last is not None and not any(word in last.name for word in ("label", "target"))


def _binds_without_last(given: Any, form: Form) -> bool:
    if form.loss is not None or form.forward is None or not is_several(given) or len(given) < 2:
        return False
    return not _problem(form.forward, (tuple(given[:-1]), {}))


def _last_parameter(given: Any, form: Form) -> inspect.Parameter:
    assert form.forward is not None
    parameters = list(form.forward.parameters.values())
    return parameters[min(len(given), len(parameters)) - 1]


def no_argument(given: Any, form: Form, raised: str = "takes no target") -> Misuse:
    """What to return instead of a batch whose last thing is a target."""
    what = "(inputs, target)" if len(given) == 2 else f"{len(given)} things, the last of which is a target"
    names = "" if form.forward is None else ", ".join(form.forward.parameters)
    return Misuse(
        f"make_batch returns {what}, and forward({names}) {raised}: return the inputs alone, or {_WITH_A_LOSS}"
    )


def _choices(given: Any, form: Form) -> Iterator[Arguments]:
    """What the arguments may be, first what is most likely. The user's loss gets the whole batch in any case."""
    if isinstance(given, Mapping):
        yield (), given if form.loss is None else _named(given, form)
    elif not is_several(given):
        yield (given,), {}
    else:
        inputs: Any = given[:-1] if form.loss is not None else ()
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            yield (), inputs[0]
        if inputs:
            yield tuple(inputs), {}
        if len(inputs) == 1 and is_several(inputs[0]):
            yield tuple(inputs[0]), {}
        yield tuple(given), {}


def _named(given: Mapping[str, Any], form: Form) -> Mapping[str, Any]:
    parameters = form.forward.parameters if form.forward is not None else {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def _problem(signature: inspect.Signature, choice: Arguments) -> str:
    try:
        signature.bind(*choice[0], **choice[1])
    except TypeError as error:
        return str(error)
    return ""


def _cannot_be(parameter: inspect.Parameter, value: Any) -> bool:
    """Whether a value is surely not meant for an optional mask or switch, but is a target."""
    import torch

    if isinstance(parameter.default, bool | int | float | str):
        return isinstance(value, torch.Tensor) and value.dim() == 1
    if parameter.default is not None or "mask" not in parameter.name:
        return False
    if isinstance(value, torch.Tensor):
        if value.dtype is torch.bool or value.dim() < 2:
            return value.dtype is not torch.bool
        # It holds whole numbers that no mask does: other ones than 0 and 1.
        return not value.is_floating_point() and not value.is_meta and bool(((value < 0) | (value > 1)).any())
    return isinstance(value, int | str) or (isinstance(value, list) and any(isinstance(word, str) for word in value))
