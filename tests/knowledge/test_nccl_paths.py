"""The transport that NCCL should use between two GPUs, by version, CPU, settings and NVML's status."""

from typing import Any

import pytest

from ddp_doctor.knowledge.topology.nccl_paths import Node, Pair, bridged, choose, gpudirect, near

INTEL = {"gpus": 8, "cpu_vendor": "GenuineIntel"}
AMD_PAIR = {"gpus": 2, "cpu_vendor": "AuthenticAMD"}


def chosen(node: dict[str, Any], code: str, status: str | None = "OK", **more: Any) -> tuple[str, bool]:
    settings = {name: value for name, value in more.items() if name.startswith("NCCL_")}
    version = more.get("version", (2, 27, 5))
    rest = {name: value for name, value in more.items() if name in {"bridged", "near_network"}}
    choice = choose(Node(**node, version=version, settings=settings), Pair(code, status, **rest))
    return choice.kind, choice.sure


@pytest.mark.parametrize(
    ("node", "code", "expected"),
    [
        (INTEL, "NV18", "P2P"),
        (INTEL, "PIX", "P2P"),
        (INTEL, "PXB", "P2P"),
        (INTEL, "PHB", "SHM"),
        (INTEL, "NODE", "SHM"),
        (INTEL, "SYS", "SHM"),
        (AMD_PAIR, "SYS", "P2P"),
        ({**AMD_PAIR, "gpus": 4}, "SYS", "SHM"),
        ({**AMD_PAIR, "gpus": 4}, "PHB", "SHM"),
    ],
)
def test_p2p_ends_at_the_host_bridge_by_default_except_for_amd_pairs(node: dict[str, Any], code: str, expected: str):
    assert chosen(node, code) == (expected, True)


def test_before_2_23_amd_had_no_limit():
    assert chosen({**AMD_PAIR, "gpus": 8}, "SYS", version=(2, 21, 5)) == ("P2P", True)


def test_before_2_12_intels_host_bridge_is_uncertain():
    assert chosen(INTEL, "PHB", version=(2, 10, 3)) == ("SHM", False)


@pytest.mark.parametrize(
    ("settings", "code", "expected"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, "NV18", "SHM"),
        ({"NCCL_P2P_DISABLE": "2"}, "NV18", "P2P"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}, "PIX", "SHM"),
        ({"NCCL_P2P_LEVEL": "SYS"}, "SYS", "P2P"),
        ({"NCCL_P2P_LEVEL": "sys"}, "SYS", "SHM"),
        ({"NCCL_P2P_LEVEL": "NVL"}, "PIX", "SHM"),
        ({"NCCL_P2P_LEVEL": "LOC"}, "NV4", "SHM"),
        ({"NCCL_SHM_DISABLE": "1"}, "SYS", "NET"),
        ({"NCCL_SHM_DISABLE": "1"}, "PIX", "P2P"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, "NV18", "NET"),
    ],
)
def test_settings_precede_the_defaults(settings: dict[str, str], code: str, expected: str):
    assert chosen(INTEL, code, **settings) == (expected, True)


def test_driver_that_offers_no_p2p_leaves_shared_memory():
    assert chosen(INTEL, "PIX", "CNS") == ("SHM", True)
    assert chosen(INTEL, "PIX", "CNS", NCCL_IGNORE_DISABLED_P2P="2") == ("P2P", True)


def test_unknown_cpu_with_two_gpus_is_not_sure():
    assert chosen({"gpus": 2}, "SYS") == ("P2P", False)


def test_network_that_may_be_faster_than_the_link_between_the_sockets_is_not_sure():
    assert chosen(INTEL, "SYS", near_network=None) == ("SHM", False)
    assert chosen(INTEL, "SYS", near_network=True) == ("NET", True)
    assert chosen(INTEL, "SYS", near_network=True, NCCL_NET_DISABLE_INTRA="1") == ("SHM", True)
    assert chosen(INTEL, "NODE", near_network=True) == ("SHM", True)


@pytest.mark.parametrize(
    ("version", "takes"),
    [
        ((), ("NET", True)),
        ((2, 21, 5), ("NET", True)),
        ((2, 27, 5), ("NET", True)),
        ((2, 30, 7), ("SHM", False)),
        ((2, 32, 3), ("NET", True)),
    ],
)
def test_one_release_stays_in_memory_while_others_use_the_faster_network(version, takes):
    assert chosen(INTEL, "SYS", near_network=True, version=version) == takes


def test_nvlinks_through_a_third_gpu_are_p2p():
    links = {"GPU0": {"GPU1": "SYS", "GPU2": "NV1"}, "GPU1": {"GPU0": "SYS", "GPU2": "NV2"}}
    links["GPU2"] = {"GPU0": "NV1", "GPU1": "NV2"}
    assert bridged(tuple(links), links, "GPU0", "GPU1")
    assert not bridged(tuple(links), links, "GPU0", "GPU2")
    assert chosen(INTEL, "SYS", bridged=True) == ("P2P", False)


def test_near_means_within_pxb_of_both():
    assert near([["SYS", "PIX"], ["PXB"]])
    assert not near([["SYS", "PIX"], ["NODE"]])
    assert not near([[], []])


@pytest.mark.parametrize(
    ("version", "settings", "code", "c2c", "expected"),
    [
        ((2, 27), {}, "NODE", True, True),
        ((2, 27), {}, "PHB", True, True),
        ((2, 27), {}, "PHB", False, False),
        ((2, 27), {}, "SYS", True, False),
        ((2, 27), {"NCCL_NET_GDR_C2C": "0"}, "PHB", True, False),
        ((2, 27), {"NCCL_NET_GDR_LEVEL": "PXB"}, "PHB", True, False),
        ((2, 27), {"NCCL_NET_GDR_LEVEL": "PHB"}, "PHB", True, True),
        ((2, 26), {}, "PHB", True, False),
        ((2, 26), {"NCCL_NET_GDR_C2C": "1"}, "PHB", True, True),
        ((), {}, "PHB", True, None),
        ((), {}, "PIX", True, True),
    ],
)
def test_nics_behind_the_cpu_reach_gpus_on_c2c_since_nccl_2_27(
    version: tuple[int, ...], settings: dict[str, str], code: str, c2c: bool, expected: bool | None
):
    node = Node(gpus=4, cpu_vendor="ARM", version=version, settings=settings)
    assert gpudirect(node, code, "NVIDIA GB200", kernel=(True, "dma-buf"), c2c=c2c)[0] is expected
