"""NCCL's log reduced: relevant lines stay, all others are removed, and the result is small."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.parse.nccl_log import MOST_CHARACTERS, digest, parse_nccl_log

PREFIX = "wk:8811:8840 [0] NCCL INFO "
WORDS = st.sampled_from(
    [
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Ring 01 : 3 -> 4 [send] via NET/Socket/0",
        "NCCL_P2P_LEVEL set by environment to SYS",
        "NCCL version 2.27.5+cuda12.8",
        "comm 0x55d rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0",
        "comm 0x55d rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9 - Init START",
        "NET/IB : Using [0]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_2'",
        "Using network IB",
        "Bootstrap : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>",
        "NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "cudaDriverVersion 12040",
        "NET/Plugin: Loaded net plugin AWS Libfabric (v8)",
        "2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
        "comm 0x6 rank 0 nranks 2 cudaDev 0 busId 1b000 parent 0x5 color 0 key 0- Init COMPLETE",
        "comm 0x55d rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9 - Init COMPLETE",
        "CollNet 00/0 : 2 [receive] via COLLNET/SHARP/0/GDRDMA",
        "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
        "NVLS multicast support is not available on dev 1",
        "Connected all rings, use ring PXN 0 GDR 1",
        "Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1",
        "+ PCI[24.0] - GPU/0-1b000 (0)",
        "Trees [0] -1/-1/-1->1->0 [1] 0/-1/-1->1->-1",
    ]
)


@given(st.lists(st.tuples(st.booleans(), WORDS), max_size=40))
def test_digest_has_the_same_facts_as_the_log(lines: list[tuple[bool, str]]):
    text = "\n".join((PREFIX if prefixed else "") + words for prefixed, words in lines)
    assert parse_nccl_log(digest(text.splitlines())) == parse_nccl_log(text)


def test_further_channels_and_the_topology_are_omitted():
    log = [
        f"{PREFIX}+ PCI[24.0] - GPU/0-1b000 (0)",
        f"{PREFIX}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        f"{PREFIX}Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM",
    ]
    assert digest(log) == "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"


@given(st.lists(st.text(alphabet="Chanel Ringvi0123456789[]:->/\n\r", max_size=80), max_size=80))
def test_any_lines_are_reduced(lines: list[str]):
    assert len(digest(lines)) <= MOST_CHARACTERS


@pytest.mark.parametrize(
    "junk", ["NCCL_", "Channel 00 : ", "[0]mlx5_", "NET/IB : [0", " via ", "comm 0x1 rank 1 nranks "]
)
@pytest.mark.fuzz
def test_megabytes_of_junk_take_seconds_at_most(junk: str):
    text = junk * (4_000_000 // len(junk))
    started = time.process_time()
    parse_nccl_log(text)
    digest([text])
    digest([junk * 40] * 25_000)
    assert time.process_time() - started < 10.0  # measured: 0.2 to 1 s
