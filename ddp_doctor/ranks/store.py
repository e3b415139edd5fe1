"""The connection to the store that ranks and agents meet on."""

from datetime import timedelta
from typing import Any

#: torch's own default.
_CLIENT_TIMEOUT = timedelta(minutes=5)


def connect(host: str, port: int, prefix: str, timeout: timedelta = _CLIENT_TIMEOUT) -> Any:
    """A client of the store in which all keys begin with ``prefix``: one trial, one namespace."""
    c10d = imported_c10d()
    return c10d.PrefixStore(prefix, c10d.TCPStore(host, port, is_master=False, timeout=timeout))


def imported_c10d() -> Any:
    """torch's own module of stores."""
    import torch.distributed

    return torch.distributed  # untyped: torch's stubs hide the stores it documents
