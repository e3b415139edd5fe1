"""The store where ranks and agents meet: the connection to it, and the texts that ranks exchange over it.

The store works when a collective would hang, so ranks use it to compare what they are about to do. Equal texts, the
common case, are sent once: each rank sets a digest and its text, and gets one text per digest.
"""

import hashlib
import zlib
from datetime import timedelta
from typing import Any

from ddp_doctor.model.fact import Failed

#: torch's own default.
_CLIENT_TIMEOUT = timedelta(minutes=5)


def connect(host: str, port: int, prefix: str, timeout: timedelta = _CLIENT_TIMEOUT) -> Any:
    """Return a client of the store that prepends ``prefix`` to all keys: each trial has its own namespace."""
    c10d = imported_c10d()
    return c10d.PrefixStore(prefix, c10d.TCPStore(host, port, is_master=False, timeout=timeout))


def imported_c10d() -> Any:
    """Return torch's own module of stores."""
    import torch.distributed

    return torch.distributed  # untyped: torch's stubs hide the stores it documents


#: Bytes of a compressed text: a value over 8 MiB ends the store's connection (torch 2.13, TCPStore).
MOST_BYTES = 4 * 2**20
#: Maximum length of a text after decompression.
MOST_CHARACTERS = 256 * 2**20
#: Longer than the agent's deadlines.
_WAIT = timedelta(minutes=10)


def exchange(store: Any, name: str, text: str, rank: int, ranks: int) -> tuple[str, ...]:
    """Return the text of each of the ``ranks`` under ``name``; waits for the slowest rank.

    Raises Failed if the text is too long for the store.
    """
    packed = zlib.compress(text.encode(), 1)
    if len(packed) > MOST_BYTES:
        raise Failed(
            f"{name} of this rank has {len(packed)} bytes, but at most {MOST_BYTES} bytes can be sent to other ranks"
        )
    store.set(f"{name}/text/{rank}", packed)
    store.set(f"{name}/digest/{rank}", hashlib.sha256(packed).hexdigest())
    keys = [f"{name}/digest/{peer}" for peer in range(ranks)]
    store.wait(keys, _WAIT)
    digests = store.multi_get(keys)
    texts = {digests[rank]: text}
    for peer, digest in enumerate(digests):
        if digest not in texts:
            texts[digest] = zlib.decompressobj().decompress(store.get(f"{name}/text/{peer}"), MOST_CHARACTERS).decode()
    return tuple(texts[digest] for digest in digests)
