"""All faults by name, in the notation of users and tables.

    with faults.plant(lab, "loss:node1:5"):
        ...

Each is a function of network_faults or host_faults, which injects it and returns how to undo it.
"""

import inspect
from collections.abc import Callable

from tests.lab import host_faults, network_faults
from tests.lab.hosts import Host, Lab
from tests.lab.planted import Planted

FAULTS: dict[str, Callable[..., Planted]] = {
    name.replace("_", "-"): fault
    for module in (network_faults, host_faults)
    for name, fault in inspect.getmembers(module, inspect.isfunction)
    if fault.__module__ == module.__name__ and not name.startswith("_")
}


def usage(name: str) -> str:
    """Return the notation of a fault: ``loss:HOST[:PERCENT]``."""
    words = [name]
    for parameter in inspect.signature(FAULTS[name]).parameters.values():
        if parameter.annotation is not Lab:
            word = f":{parameter.name.upper()}"
            words.append(word if parameter.default is parameter.empty else f"[{word}]")
    return "".join(words)


def plant(lab: Lab, text: str) -> Planted:
    """Inject a fault in the notation of ``usage``. Raises ValueError if it is invalid."""
    name, *words = text.split(":", 1)
    if name not in FAULTS:
        raise ValueError(f"no fault {name!r}; there are {', '.join(FAULTS)}")
    parameters = inspect.signature(FAULTS[name]).parameters
    wanted = [it for it in parameters.values() if it.annotation is not Lab]
    given = words[0].split(":", len(wanted) - 1) if words else []  # the last one may hold colons
    try:
        values = [_value(lab, it.annotation, word) for it, word in zip(wanted, given, strict=False)]
        bound = inspect.signature(FAULTS[name]).bind(*([lab] if len(wanted) < len(parameters) else []), *values)
    except (TypeError, ValueError, StopIteration):
        raise ValueError(f"{text!r} is not {usage(name)}") from None
    return FAULTS[name](*bound.args)


def _value(lab: Lab, kind: type, word: str) -> object:
    return lab[word] if kind is Host else kind(word)
