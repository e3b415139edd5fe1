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

#: torchrun's port for the c10d rendezvous, and the one of ``--master-port``.
RENDEZVOUS_PORT = 29400
MASTER_PORT = 29500
#: More than any cluster has.
MOST_NODES = 65_536
_NNODES = re.compile(r"(\d{1,9})(?::(\d{1,9}))?", re.ASCII)
_ENDPOINT = re.compile(r"(?P<host>[^:\s\[\]]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d{1,5}))?", re.ASCII)


def nnodes(text: str) -> tuple[int, int]:
    """The least and the most nodes of ``--nnodes``. Raises ValueError with one sentence."""
    found = _NNODES.fullmatch(text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= MOST_NODES:
        raise ValueError(f"--nnodes takes a number from 1 to {MOST_NODES}, or MIN:MAX, not {text!r}")
    return least, most


def endpoint(text: str, option: str = "--rdzv-endpoint") -> tuple[str, int]:
    """Host (without brackets) and port. Raises ValueError with one sentence."""
    found = _ENDPOINT.fullmatch(text)
    if found is None or int(found["port"] or 0) > 65535:
        raise ValueError(f"{option} takes HOST:PORT with a port up to 65535, not {text!r}")
    return found["host"].strip("[]"), int(found["port"] or RENDEZVOUS_PORT)


def written(host: str, port: int) -> str:
    """``HOST:PORT`` as the option takes it; an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_FORM = "--model takes MODULE:FACTORY, such as train.models:make"
_CHECK = "user_model"


def require_factory(name: str, only: Collection[str] = ()) -> None:
    """Raises ValueError with a sentence for a name that cannot be one, or that a check of --only lacks."""
    if not name:
        if _CHECK in only:
            raise ValueError(f"--only {_CHECK} needs a model of yours: name what makes it with --model MODULE:FACTORY")
        return
    module, colon, factory = name.partition(":")
    if module.endswith(".py") or "/" in module:
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        hint = f"{dotted}:{factory or 'make'}"
        meant = f"; for this file: --model {hint}" if _is_path(dotted) else ""
        raise ValueError(f"{_FORM}: a module's name, not its file{meant}")
    if not colon:
        raise ValueError(f"{_FORM}; there is no colon in {name[:80]!r}")
    for part in (module, factory):
        if not _is_path(part):
            raise ValueError(f"{_FORM}; {part[:80]!r} is no name in Python")


def _is_path(text: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))
