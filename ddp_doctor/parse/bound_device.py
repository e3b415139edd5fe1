"""What torch says where a process group meets a tensor of another GPU than its own.

    ProcessGroupNCCL is bound to device cuda:0 but an operation was issued on cuda:1

Source: torch 2.15 c10d/nccl2/ProcessGroupNCCL.cpp (ensureInitialized).
"""

import re

from ddp_doctor.model.base import Frozen

_ELSEWHERE = re.compile(
    r"is bound to device (?P<bound>cuda(?::\d{1,5})?) but an operation was issued on (?P<used>cuda(?::\d{1,5})?)"
)


class UsedElsewhere(Frozen):
    """The device of the group, and the one that the operation used."""

    bound: str
    used: str


def used_elsewhere(message: str) -> UsedElsewhere | None:
    """Both devices, where this is what a message says."""
    match = _ELSEWHERE.search(message)
    return None if match is None else UsedElsewhere(bound=match["bound"], used=match["used"])
