"""NCCL_IB_HCA, as NCCL 2.30.7 parses it (src/misc/utils.cc), and its written form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.network import nccl_hca

PORTS = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("mlx5_bond_0", 1)]


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("", PORTS),
        ("mlx5_1", [("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1)]),
        ("=mlx5_1", [("mlx5_1", 1), ("mlx5_1", 2)]),
        ("=mlx5_1:2", [("mlx5_1", 2)]),
        ("mlx5_1:2,mlx5_0:1", [("mlx5_0", 1), ("mlx5_1", 2)]),
        ("^mlx5_1", [("mlx5_0", 1), ("mlx5_bond_0", 1)]),
        ("^=mlx5_1", [("mlx5_0", 1), ("mlx5_10", 1), ("mlx5_bond_0", 1)]),
        ("=^mlx5_1", []),
        ("mlx5_bond", [("mlx5_bond_0", 1)]),
        ("mlx4", []),
        (",,mlx5_0,", [("mlx5_0", 1)]),
        ("=mlx5_1:1:0:3", [("mlx5_1", 1)]),
        ("=mlx5_1:", [("mlx5_1", 1), ("mlx5_1", 2)]),
    ],
)
def test_value_selects_the_same_ports_as_in_nccl(value: str, taken: list[tuple[str, int]]):
    assert [port for port in PORTS if nccl_hca.takes(value, *port)] == taken


@pytest.mark.parametrize(
    ("value", "named"),
    [("mlx5", []), ("mlx5_1", ["mlx5_1"]), ("=mlx5_1:1,mlx5_0", ["mlx5_0", "mlx5_1"]), ("^mlx5_1", []), ("", [])],
)
def test_prefix_does_not_name_a_device_in_full(value: str, named: list[str]):
    names = dict.fromkeys(name for name, _ in PORTS)

    assert [name for name in names if nccl_hca.names_in_full(value, name)] == named


def test_a_written_value_means_these_ports_and_no_others():
    wanted = [("mlx5_1", 1), ("mlx5_bond_0", 1)]

    value = nccl_hca.exactly(wanted)

    assert value == "=mlx5_1:1,mlx5_bond_0:1"
    assert [port for port in PORTS if nccl_hca.takes(value, *port)] == wanted


@pytest.mark.parametrize("name", ["", "$(reboot)", "mlx5_0,mlx5_1", "=x", "a b", "x" * 65])
def test_name_with_another_meaning_is_not_written(name: str):
    assert nccl_hca.exactly([(name, 1)]) is None


@given(st.text(max_size=300))
def test_any_value_is_evaluated(value: str):
    assert all(nccl_hca.takes(value, *port) in (True, False) for port in PORTS)
    assert len(nccl_hca.entries(value)) <= nccl_hca.MOST_DEVICES


def test_names_are_sorted_as_people_count():
    names = ["mlx5_10", "mlx5_2", "mlx5_bond_0", "irdma0", "2", "a"]

    assert sorted(names, key=nccl_hca.natural) == ["2", "a", "irdma0", "mlx5_2", "mlx5_10", "mlx5_bond_0"]
