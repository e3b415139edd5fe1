"""NCCL's channel lines of every era, and the settings and devices around them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.parse.nccl_log import Hca, Transport, parse_nccl_log

PREFIX = "wk:8811:8840 [0] NCCL INFO "


@pytest.mark.parametrize(
    ("line", "transport"),
    [
        (
            "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
            Transport(from_rank=0, to_rank=1, via="P2P/CUMEM", from_gpu=0, to_gpu=1),
        ),
        (
            "Channel 03/0 : 7[7] -> 0[0] via P2P/CUMEM/read",
            Transport(from_rank=7, to_rank=0, via="P2P/CUMEM/read", from_gpu=7, to_gpu=0),
        ),
        (
            "Channel 00 : 53[1c000] -> 54[88000] via P2P/IPC",
            Transport(from_rank=53, to_rank=54, via="P2P/IPC"),
        ),
        ("Channel 00/0 : 0[3000] -> 1[4000] via P2P/IPC", Transport(from_rank=0, to_rank=1, via="P2P/IPC")),
        (
            "Ring 00 : 0[0] -> 1[1] via P2P/direct pointer",
            Transport(from_rank=0, to_rank=1, via="P2P/direct pointer", from_gpu=0, to_gpu=1),
        ),
        (
            "Ring 00 : 0[0] -> 1[1] via direct shared memory",
            Transport(from_rank=0, to_rank=1, via="direct shared memory", from_gpu=0, to_gpu=1),
        ),
        (
            "Ring 01 : 3 -> 4 [send] via NET/Socket/0",
            Transport(from_rank=3, to_rank=4, via="NET/Socket/0", end="send"),
        ),
        (
            "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
            Transport(from_rank=0, to_rank=1, via="SHM/direct/direct", from_gpu=0, to_gpu=1),
        ),
        (
            "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/IB/3(2)/GDRDMA(PCI)/Shared",
            Transport(
                from_rank=0,
                to_rank=8,
                via="NET/IB/3(2)/GDRDMA(PCI)/Shared",
                from_gpu=0,
                to_gpu=0,
                end="receive",
            ),
        ),
    ],
)
def test_channel_line_of_each_era(line: str, transport: Transport):
    assert parse_nccl_log(PREFIX + line + "\r\n").transports == (transport,)


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


def test_devices_listed_one_by_one_since_2_27():
    line = (
        f"{PREFIX}NET/IB: [2] mlx5_3:uverbs3:1/RoCE provider=Mlx5 speed=100000 context=0x1 pciPath=/sys ar=0"
    )
    assert parse_nccl_log(line).hcas == (Hca(index=2, name="mlx5_3", link_layer="RoCE", speed_mbps=100_000),)


def test_ring_order_and_other_lines_are_no_transports():
    log = parse_nccl_log(f"{PREFIX}Channel 00/04 : 0 1\n{PREFIX}Connected all rings\nsent via store -> ok\n")
    assert log.transports == ()
    assert log.recorded()["kind"] == "nccl-transports/1"


@given(st.text(alphabet="Channel Rig0123456789[]/:->viaP2CUMENT\n", max_size=200))
def test_any_text_is_read(text: str):
    parse_nccl_log(text)
