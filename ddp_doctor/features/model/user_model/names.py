"""Names in the user's model as facts hold them: the first few, and how many there are."""

from ddp_doctor.model.base import Frozen

#: Maximum number of names listed; further names are only counted.
MOST_NAMES = 16


class Names(Frozen):
    """The first of ``count`` names."""

    names: tuple[str, ...] = ()
    count: int = 0
