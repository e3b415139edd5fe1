"""Values of the options of ``fit``."""

import re
from typing import Any

from ddp_doctor.knowledge.ddp.strategies import BY_NAME
from ddp_doctor.model.choices import as_usage_error
from ddp_doctor.model.error_text import expected, quoted
from ddp_doctor.model.recording import FitOptions
from ddp_doctor.parse.options import is_configuration, require_factory

#: Bits of a unit.
_BITS = {"M": 20, "G": 30, "T": 40}
_MEMORY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([MGT])(?:i?B)?", re.IGNORECASE | re.ASCII)


def memory_bytes(text: str) -> int:
    """Return the bytes of ``--memory 80GiB`` or ``--memory 39.5G``. Raises ValueError with one sentence."""
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"invalid --memory {quoted(text)}: expected one GPU's memory with a unit, for example 80GiB")
    if not (bytes_of := int(float(found[1]) * (1 << _BITS[found[2].upper()]))):
        raise ValueError(f"invalid --memory {quoted(text)}: expected more than 0 bytes")
    return bytes_of


def require_strategy(name: str) -> None:
    """Raise ValueError with the nearest name for an unknown ``--strategy``. An empty name is valid."""
    if name and name not in BY_NAME:
        meant = "zero3" if "fsdp" in name.lower() else name
        raise ValueError(f"invalid --strategy {quoted(name)}: {expected(meant, BY_NAME)}")


def fit_options(model: str, memory: str, batch: int | None, seq: int | None, **fields: Any) -> FitOptions:
    """Return the options of ``fit``. Raises UsageError."""
    with as_usage_error():
        size = memory_bytes(memory) if memory else None
        if not is_configuration(model):
            if not model:
                raise ValueError("no model given; add MODULE:FACTORY, for example train.models:make, or hf:NAME")
            require_factory(model, option="fit")
            if given := [name for name, value in (("--batch", batch), ("--seq", seq)) if value is not None]:
                raise ValueError(
                    f"{given[0]} applies only to hf: models; omit it, because the factory's make_batch defines the"
                    " batch"
                )
        if fields["measure"] and fields["ranks"]:
            raise ValueError(
                "--ranks cannot be used with --measure, which runs on this machine; use --nproc-per-node instead"
            )
        require_strategy(fields["strategy"])
    return FitOptions(memory_bytes=size, batch=batch, seq=seq, **fields)
