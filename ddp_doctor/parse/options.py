"""Values of options: torchrun's number of nodes and endpoint, and the callable of --model.

    --nnodes 4            --nnodes 2:4 (at least 2, at most 4)
    --rdzv-endpoint node0:29400      node0 (port 29400)      [fd00::1]:29400

Source: torch/distributed/run.py (parse_min_max_nnodes) and
torch/distributed/elastic/rendezvous/utils.py (parse_rendezvous_endpoint).

train.models:make_resnet      module "train.models", callable "make_resnet"
train.models:Nets.small       a class of it that holds the callable
"""

import keyword
import re
from collections.abc import Collection

from ddp_doctor.model.error_text import did_you_mean, expected, quoted

#: torchrun's ports for the c10d rendezvous and for ``--master-port``.
RENDEZVOUS_PORT = 29400
MASTER_PORT = 29500
#: More than any cluster has.
MOST_NODES = 65_536
_NNODES = re.compile(r"(\d{1,9})(?::(\d{1,9}))?", re.ASCII)
_ENDPOINT = re.compile(r"(?P<host>[^:\s\[\]]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d{1,5}))?", re.ASCII)


def nnodes(text: str) -> tuple[int, int]:
    """Return the minimum and maximum number of nodes of ``--nnodes``. Raises ValueError with one sentence."""
    found = _NNODES.fullmatch(text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= MOST_NODES:
        raise ValueError(f"invalid --nnodes {quoted(text)}: expected 1 to {MOST_NODES}, or MIN:MAX")
    return least, most


def endpoint(text: str, option: str = "--rdzv-endpoint") -> tuple[str, int]:
    """Return host (without brackets) and port. Raises ValueError with one sentence."""
    found = _ENDPOINT.fullmatch(text)
    if found is None or int(found["port"] or 0) > 65535:
        raise ValueError(f"invalid {option} {quoted(text)}: expected HOST or HOST:PORT with a port from 1 to 65535")
    return found["host"].strip("[]"), int(found["port"] or RENDEZVOUS_PORT)


def written(host: str, port: int) -> str:
    """Return ``HOST:PORT`` as the option accepts it, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_CHECKS = ("user_model", "compile")
#: Prefix of a model that transformers builds from a configuration.
CONFIGURATION = "hf:"


def is_configuration(name: str) -> bool:
    """Return True if a model is a configuration, ``hf:llama,num_hidden_layers=16``, instead of a factory."""
    return name.startswith(CONFIGURATION)


def require_factory(name: str, only: Collection[str] = (), option: str = "--model") -> None:
    """Raise ValueError for a name that cannot be a factory, or without a name if a check of --only needs one."""
    if not name:
        for check in _CHECKS:
            if check in only:
                raise ValueError(f"--only {check} requires a model; add --model MODULE:FACTORY")
        return
    invalid = f"invalid {'model' if option == 'fit' else option} {quoted(name)}"
    module, colon, factory = name.partition(":")
    if module.endswith(".py") or "/" in module:
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        hint = f"{dotted}:{factory or 'make'}"
        meant = f"; for this file, use {option} {hint}" if _is_path(dotted) else ""
        raise ValueError(f"{invalid}: expected a module name instead of a file{meant}")
    if not colon:
        raise ValueError(f"{invalid}: expected MODULE:FACTORY, for example train.models:make")
    for part in (module, factory):
        if not _is_path(part):
            raise ValueError(f"{invalid}: expected MODULE:FACTORY, but {quoted(part)} is not a Python name")


def _is_path(text: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))


#: nccl-tests' suffixes of sizes, and units of rates; bytes by 1024, rates by 1000.
_SIZE = re.compile(r"(\d{1,18})([KMGT]?)(?:i?B)?", re.IGNORECASE | re.ASCII)
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([kMGT])B/s", re.ASCII)
_POWERS = " KMGT"
#: fp32, the type of all measured sizes.
_ELEMENT_BYTES = 4
_MOST_SIZES = 64


def size(text: str, option: str) -> int:
    """Return the bytes of ``8``, ``512K`` or ``1G``. Raises ValueError with one sentence."""
    found = _SIZE.fullmatch(text.strip())
    bytes_of = int(found[1]) << 10 * _POWERS.index(found[2].upper() or " ") if found else 0
    if not 0 < bytes_of < 1 << 50:
        raise ValueError(
            f"invalid size {quoted(text)} in {option}: expected a number of bytes, for example 8, 512K or 1G (powers"
            " of 1024)"
        )
    if bytes_of % _ELEMENT_BYTES:
        raise ValueError(
            f"invalid size {quoted(text)} in {option}: expected a multiple of 4 bytes, the size of an fp32 element"
        )
    return bytes_of


def sizes(text: str) -> tuple[int, int, int] | None:
    """Parse ``--sizes FROM:TO:FACTOR`` or one size; None for empty text. Raises ValueError with one sentence."""
    if not text:
        return None
    first, *rest = text.split(":")
    ends = [size(end, "--sizes") for end in (first, *rest[:1])]
    factor = rest[1] if len(rest) == 2 else "2"
    if len(rest) > 2 or not factor.isascii() or not factor.isdigit() or not 2 <= int(factor[:9]) <= 1 << 30:
        raise ValueError(
            f"invalid --sizes {quoted(text)}: expected FROM:TO:FACTOR, for example 8:1G:4, with a factor of 2 or more"
        )
    if ends[-1] < ends[0]:
        raise ValueError(
            f"invalid --sizes {quoted(text)}: the first size is larger than the last; put the smaller one first"
        )
    return ends[0], ends[-1], int(factor)


def floor(text: str, known: Collection[str]) -> tuple[str, int, float]:
    """Parse ``all_reduce:1G=180GB/s`` of ``--min-busbw``: collective, bytes, bytes per second. Raises ValueError."""
    invalid = f"invalid --min-busbw {quoted(text)}"
    name, colon, rest = text.partition(":")
    size_of, equals, rate = rest.partition("=")
    if not colon or not equals:
        raise ValueError(f"{invalid}: expected COLLECTIVE:SIZE=RATE, for example all_reduce:1G=180GB/s")
    require_collective(name, known, "--min-busbw")
    found = _RATE.fullmatch(rate.strip())
    if found is None:
        raise ValueError(f"{invalid}: expected a rate with a unit, for example 180GB/s (1 GB is 10^9 bytes)")
    if not (bytes_per_s := float(found[1]) * 1000 ** ("kMGT".index(found[2]) + 1)):
        raise ValueError(f"{invalid}: expected a rate greater than 0")
    return name, size(size_of, "--min-busbw"), bytes_per_s


def require_collective(name: str, known: Collection[str], option: str) -> None:
    """Raise ValueError with the nearest name for an unknown collective."""
    if name not in known:
        hint = did_you_mean(name, known) or expected(name, known)
        raise ValueError(f"unknown collective {quoted(name)} in {option}; {hint}")


_AXIS = re.compile(r"([^\W\d]\w{0,39})=(\d{1,9})")


def mesh(text: str) -> tuple[tuple[str, int], ...]:
    """Return names and sizes of ``--mesh dp=2,shard=4``. Raises ValueError with one sentence."""
    found = [_AXIS.fullmatch(part.strip()) for part in text.split(",")]
    axes = {axis[1]: int(axis[2]) for axis in found if axis is not None}
    if None in found:
        raise ValueError(f"invalid --mesh {quoted(text)}: expected NAME=RANKS for each axis, for example dp=2,shard=4")
    if len(axes) < len(found):
        raise ValueError(f"invalid --mesh {quoted(text)}: two axes have the same name; rename one of them")
    if 0 in axes.values():
        raise ValueError(f"invalid --mesh {quoted(text)}: an axis has 0 ranks; give each at least 1")
    return tuple(axes.items())
