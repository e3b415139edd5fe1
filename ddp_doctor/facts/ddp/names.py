"""Names of the user's model in facts: the first ones of many."""

from ddp_doctor.model.base import Frozen

#: This many of many names are listed; their number stands for the others.
MOST_NAMES = 16


class Names(Frozen):
    """Some names out of ``count``."""

    names: tuple[str, ...] = ()
    count: int = 0
