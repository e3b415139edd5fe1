"""The entry of a RoCE port's table that NCCL takes, by release, and the tables of real reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.network.roce_gids import Gid, common_index, compressed, nccl_choice

OLD, FIRST, NEW = (2, 20, 5), (2, 21, 5), (2, 27, 5)
LOCAL = "fe80::ac0:ebff:feda:1cfb"


def table(*rows: tuple[int, str, int | None]) -> tuple[Gid, ...]:
    """Return a table from rows of index, address and version; None marks another namespace's entry."""
    return tuple(
        Gid(index=index, address=address, roce=version, hidden=version is None) for index, address, version in rows
    )


#: NVIDIA/nccl issue 769.
PLAIN = table((0, LOCAL, 1), (1, LOCAL, 2), (2, "::ffff:200.0.209.6", 1), (3, "::ffff:200.0.209.6", 2))
#: NVIDIA/nccl issue 1538: a pod with its own interface; the host's entries come first.
POD = table(
    (0, LOCAL, None),
    (1, LOCAL, None),
    (2, "::ffff:10.0.0.9", None),
    (3, "::ffff:10.0.0.9", None),
    (4, "fe80::c025:a1ff:fe31:2e81", 1),
    (5, "fe80::c025:a1ff:fe31:2e81", 2),
    (6, "::ffff:10.156.129.132", 1),
    (7, "::ffff:10.156.129.132", 2),
)
#: A VLAN next to the plain interface: the first routable entry stays.
VLAN = (*PLAIN, *table((4, "::ffff:10.8.0.6", 1), (5, "::ffff:10.8.0.6", 2)))


@pytest.mark.parametrize(
    ("gids", "nccl", "env", "index"),
    [
        (PLAIN, OLD, {}, 0),
        (PLAIN, OLD, {"NCCL_IB_GID_INDEX": "3"}, 3),
        (PLAIN, FIRST, {}, 3),
        (PLAIN, NEW, {"NCCL_IB_GID_INDEX": "-1"}, 3),
        (PLAIN, NEW, {"NCCL_IB_GID_INDEX": "1"}, 1),
        (PLAIN, NEW, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, 2),
        (PLAIN, NEW, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 0),
        (VLAN, NEW, {}, 3),
        (VLAN, NEW, {"NCCL_IB_ADDR_RANGE": "10.8.0.0/16"}, 5),
        (VLAN, NEW, {"NCCL_IB_ADDR_RANGE": "nonsense/99"}, 3),
        (POD, NEW, {}, 7),
        (POD, FIRST, {}, None),
        (POD, FIRST, {"NCCL_IB_GID_INDEX": "7"}, 7),
        (table((0, "::ffff:10.2.0.1", 2)), NEW, {}, 0),
        (table((0, LOCAL, 1), (1, LOCAL, 2)), NEW, {}, 0),
        ((), NEW, {}, 0),
    ],
)
def test_nccl_chooses_the_expected_entry(
    gids: tuple[Gid, ...], nccl: tuple[int, ...], env: dict[str, str], index: int | None
):
    assert nccl_choice(gids, nccl, env).index == index


def test_ipv6_entries_are_found_when_asked_for():
    gids = table((0, LOCAL, 1), (1, LOCAL, 2), (2, "2001:db8::1", 1), (3, "2001:db8::1", 2))

    choice = nccl_choice(gids, NEW, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"})

    assert choice.index == 3
    assert choice.gid is not None
    assert choice.gid.is_routable


def test_one_index_for_all_tables_if_possible():
    assert common_index([PLAIN, VLAN]) == 3
    assert common_index([PLAIN, POD]) is None
    assert common_index([]) is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("fe80:0000:0000:0000:0ac0:ebff:feda:1cfb\n", LOCAL),
        ("0000:0000:0000:0000:0000:ffff:c800:d106", "::ffff:200.0.209.6"),
        ("0000:0000:0000:0000:0000:0000:0000:0000", None),
        ("fe80:0000:0000:0000:0000:0000:0000:0000", None),
        ("", None),
        ("no address", None),
    ],
)
def test_address_is_shortened_and_an_empty_entry_is_none(text: str, address: str | None):
    assert compressed(text) == address


ADDRESSES = st.ip_addresses(v=6).map(lambda one: compressed(str(one)) or LOCAL)
GIDS = st.builds(
    Gid,
    index=st.integers(0, 255),
    address=st.one_of(ADDRESSES, st.ip_addresses(v=4).map(lambda one: f"::ffff:{one}"), st.just(LOCAL)),
    roce=st.sampled_from([1, 2, None]),
    hidden=st.booleans(),
)


@given(
    st.lists(GIDS, max_size=12, unique_by=lambda gid: gid.index),
    st.sampled_from([OLD, FIRST, NEW]),
    st.dictionaries(
        st.sampled_from(["NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_RANGE"]),
        st.one_of(st.text(max_size=20), st.sampled_from(["3", "AF_INET6", "10.0.0.0/8", "::/0"])),
    ),
)
def test_choice_is_an_entry_of_the_table_or_the_setting(gids: list[Gid], nccl: tuple[int, ...], env: dict[str, str]):
    choice = nccl_choice(gids, nccl, env)

    assert choice.gid is None or (choice.gid in gids and choice.gid.index == choice.index)
    assert choice.why
