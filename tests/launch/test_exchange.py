"""Ranks show one another texts over a real control store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ddp_doctor.model.fact import Failed
from ddp_doctor.ranks import store as module
from ddp_doctor.ranks.store import exchange

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def client() -> Callable[[], Any]:
    import torch.distributed

    dist: Any = torch.distributed  # torch's stubs hide the stores it documents
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: dist.PrefixStore("t1", dist.TCPStore("127.0.0.1", store.port, is_master=False))


def _all(client: Callable[[], Any], name: str, texts: list[str]) -> list[tuple[str, ...]]:
    with ThreadPoolExecutor(len(texts)) as ranks:
        said = [ranks.submit(exchange, client(), name, text, rank, len(texts)) for rank, text in enumerate(texts)]
        return [one.result(20) for one in said]


@pytest.mark.parametrize("texts", [["all alike"] * 4, ["a", "b", "a", ""], ["ü" * 500_000, "\0", "{}", "x"]])
def test_each_rank_gets_the_messages_of_all_ranks(client: Callable[[], Any], texts: list[str]):
    assert _all(client, f"check/{hash(tuple(texts))}", texts) == [tuple(texts)] * 4


def test_a_text_that_would_end_the_connection_is_refused(client: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_BYTES", 10)

    with pytest.raises(Failed, match="bytes can be sent to other ranks"):
        exchange(client(), "check/long", "no repetition: abcdefghijklm", 0, 1)
