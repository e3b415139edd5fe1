"""The name of a callable that makes the user's model, as --model takes it.

train.models:make_resnet      module "train.models", callable "make_resnet"
train.models:Nets.small       a class of it that holds the callable
"""

import keyword
from collections.abc import Collection

_FORM = "--model takes MODULE:FACTORY, such as train.models:make"
_CHECK = "user_model"


def require_factory(name: str, only: Collection[str] = ()) -> None:
    """Raises ValueError with a sentence for a name that cannot be one, or that a check of --only lacks."""
    if not name:
        if _CHECK in only:
            raise ValueError(
                f"--only {_CHECK} needs a model of yours: name what makes it with --model MODULE:FACTORY"
            )
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
