"""NCCL's channel lines of every era, and the settings and devices around them."""

import pytest

from ddp_doctor.facts.node.nccl_log import Hca, Transport
from ddp_doctor.parse.nccl_log import digest, parse_nccl_log

PREFIX = "wk:8811:8840 [0] NCCL INFO "


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", (0, 1, "P2P/CUMEM", 0, 1)),
        ("Channel 03/0 : 7[7] -> 0[0] via P2P/CUMEM/read", (7, 0, "P2P/CUMEM/read", 7, 0)),
        ("Channel 00 : 53[1c000] -> 54[88000] via P2P/IPC", (53, 54, "P2P/IPC")),
        ("Channel 00/0 : 0[3000] -> 1[4000] via P2P/IPC", (0, 1, "P2P/IPC")),
        ("Ring 00 : 0[0] -> 1[1] via P2P/direct pointer", (0, 1, "P2P/direct pointer", 0, 1)),
        ("Ring 00 : 0[0] -> 1[1] via direct shared memory", (0, 1, "direct shared memory", 0, 1)),
        ("Ring 01 : 3 -> 4 [send] via NET/Socket/0", (3, 4, "NET/Socket/0", None, None, "send")),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", (0, 1, "SHM/direct/direct", 0, 1)),
        (
            "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/IB/3(2)/GDRDMA(PCI)/Shared",
            (0, 8, "NET/IB/3(2)/GDRDMA(PCI)/Shared", 0, 0, "receive"),
        ),
    ],
)
def test_channel_line_of_each_era(line: str, values: tuple[int | str | None, ...]):
    fields = ("from_rank", "to_rank", "via", "from_gpu", "to_gpu", "end")
    transport = Transport.model_validate(dict(zip(fields, values, strict=False)))
    assert parse_nccl_log(PREFIX + line + "\r\n").transports == (transport,)


@pytest.mark.parametrize(
    "line",
    [
        "n:1:2 [0] NCCL INFO Bootstrap : Using [0]eth0:10.0.0.1<0>",  # as before 2.8
        "n:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
        "n:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>",
    ],
)
def test_the_interface_that_ranks_bootstrap_over(line: str):
    assert parse_nccl_log(digest([line])).interfaces == ("eth0",)


def test_version_settings_and_devices():
    log = parse_nccl_log(
        "NCCL version 2.27.5+cuda12.8\n"
        f"{PREFIX}NCCL_P2P_LEVEL set by environment to SYS.\n"
        f"{PREFIX}NCCL_P2P_DISABLE set by environment to 0\n"
        f"{PREFIX}NET/IB : Using [0]mlx5_2:1/RoCE [1]mlx5_bond_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
        f"{PREFIX}Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/1/GDRDMA\n"
        f"{PREFIX}Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/1/GDRDMA\n"
    )
    assert (log.version, log.p2p_level, log.p2p_disable) == ("2.27.5", "SYS", "0")
    assert log.hcas == (
        Hca(index=0, name="mlx5_2", link_layer="RoCE"),
        Hca(index=1, name="mlx5_bond_0", link_layer="IB"),
    )
    assert len(log.transports) == 1
    assert log.used_hcas() == ("mlx5_bond_0",)


def test_line_at_the_end_of_a_rank_is_not_a_second_gpu():
    """NCCL 2.27.5 on a planted GPU."""
    begin = "ncclCommInitRankConfig comm 0x7f1f5801f010 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x7877"
    end = "comm 0x7f1f5801f010 rank 0 nranks 1 cudaDev 0 busId 1b000 - Destroy COMPLETE"

    fact = parse_nccl_log(f"{begin} - Init START\n{begin} - Init COMPLETE\n{end}")

    assert [(device.rank, device.nvml) for device in fact.devices] == [(0, 0)]


def test_devices_listed_one_by_one_since_2_27():
    line = f"{PREFIX}NET/IB: [2] mlx5_3:uverbs3:1/RoCE provider=Mlx5 speed=100000 context=0x1 pciPath=/sys ar=0"
    assert parse_nccl_log(line).hcas == (Hca(index=2, name="mlx5_3", link_layer="RoCE", speed_mbps=100_000),)


DEVICE = "comm 0x55d rank 1 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000"


@pytest.mark.parametrize(
    ("lines", "inits"),
    [
        ([f"{DEVICE} commId 0x9 - Init START"], [(1, "0x9", False)]),
        ([f"{DEVICE} commId 0x9 - Init START", f"{DEVICE} commId 0x9 - Init COMPLETE"], [(1, "0x9", True)]),
        (
            [f"{DEVICE} commId 0x9 - Init COMPLETE", f"[Rank 1] ncclCommSplit {DEVICE} commId 0xa - Init START"],
            [(1, "0x9", True), (1, "0xa", False)],
        ),
        ([f"{DEVICE} - Init COMPLETE"], []),  # before 2.16 without the id that joins the ranks
        ([f"{DEVICE} commId 0x9 - Destroy COMPLETE"], [(1, "0x9", True)]),  # what is destroyed had begun
    ],
)
def test_communicators_are_begun_and_ended(lines: list[str], inits: list[tuple[int, str, bool]]):
    log = parse_nccl_log("\n".join(PREFIX + line for line in lines))
    assert [(one.rank, one.comm_id, one.complete) for one in log.inits] == inits


@pytest.mark.parametrize(
    ("lines", "nvls"),
    [
        ([], None),
        (["NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"] * 2, True),
        (["NVLS multicast support is not available on dev 0"], False),
        (["NVLS multicast support is available on dev 0", "NVLS multicast support is not available on dev 1"], None),
    ],
)
def test_multicast_is_known_if_all_gpus_agree(lines: list[str], nvls: bool | None):
    assert parse_nccl_log("\n".join(PREFIX + line for line in lines)).nvls is nvls


def test_collnet_connections_and_graphs():
    log = parse_nccl_log(
        f"{PREFIX}CollNet 00/0 : 2 [receive] via COLLNET/SHARP/0/GDRDMA\n"
        f"{PREFIX}Connected all rings, use ring PXN 0 GDR 1\n{PREFIX}Connected binomial trees\n"
        f"{PREFIX}Pattern 4, crossNic 0, nChannels 12, bw 20.000000/12.500000, type NVL/PIX, sameChannels 1\n"
        f"{PREFIX}Pattern 1, crossNic 0, nChannels 2, speed 6.000000/5.000000, type SYS/PHB, sameChannels 0\n"
    )
    assert log.collnet == ("COLLNET/SHARP/0/GDRDMA",)
    assert log.connected == ("all rings", "binomial trees")
    ring, tree = log.patterns
    assert (ring.pattern, ring.channels, ring.gb_per_s_within, ring.gb_per_s_between) == (4, 12, 20.0, 12.5)
    assert (tree.path_within, tree.path_between) == ("SYS", "PHB")
    assert log.transports == ()


@pytest.mark.parametrize(
    ("via", "network", "proxy"),
    [
        ("NET/IB/3(2)/GDRDMA(PCI)/Shared", ("IB", 3, True), 2),
        ("NET/IB/3/GDRDMA", ("IB", 3, True), None),
        ("NET/AWS Libfabric/0(4)", ("AWS Libfabric", 0, False), 4),
        ("P2P/CUMEM", None, None),
    ],
)
def test_nic_of_another_rank_is_recognized(via: str, network: tuple[str, int, bool] | None, proxy: int | None):
    one = Transport(from_rank=0, to_rank=8, via=via)
    assert (one.network, one.proxy) == (network, proxy)
