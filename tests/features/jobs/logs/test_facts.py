"""The facts that NCCL's INFO lines show about a job, in the text of each release. Written from NCCL's source."""

from pathlib import Path

import pytest

from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.model.report import JobFacts, LogsReport

OLD = """\
n1:71:71 [0] NCCL INFO Bootstrap : Using [0]ens3:10.0.0.1<0> [1]ens4:10.1.0.1<0>
NCCL version 2.4.8+cuda10.1
n1:71:90 [0] NCCL INFO Ring 00 : 1 -> 0 [receive] via NET/IB/0
n1:71:90 [0] NCCL INFO Ring 00 : 0 -> 1 [send] via NET/IB/0
n1:71:90 [0] NCCL INFO comm 0x7f01 rank 0 nranks 2 cudaDev 0 nvmlDev 0 - Init COMPLETE
"""
MPIRUN = """\
[1,0]<stdout>:n1:71:71 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
[1,0]<stdout>:n1:71:71 [0] NCCL INFO NET/OFI Selected Provider is efa
[1,0]<stdout>:n1:71:71 [0] NCCL INFO Using network AWS Libfabric
[1,0]<stdout>:NCCL version 2.10.3+cuda11.3
[1,0]<stdout>:n1:71:90 [0] NCCL INFO 2 coll channels, 2 p2p channels, 1 p2p channels per peer
[1,0]<stdout>:n1:71:90 [0] NCCL INFO Channel 00/0 : 1[1b0] -> 0[1a0] [receive] via NET/AWS Libfabric/0/GDRDMA
[1,1]<stdout>:n2:72:91 [0] NCCL INFO Channel 01/0 : 1[1b0] -> 0[1a0] [send] via NET/AWS Libfabric/0/GDRDMA
[1,0]<stdout>:n1:71:90 [0] NCCL INFO comm 0x7f01 rank 0 nranks 2 cudaDev 0 busId 1a0 - Init COMPLETE
[1,1]<stdout>:n2:72:91 [0] NCCL INFO comm 0x7f02 rank 1 nranks 2 cudaDev 0 busId 1b0 - Init COMPLETE
"""
RAY = """\
n1:71:71 [0] NCCL INFO Channel 00 : 0[1a000] -> 1[1b000] via direct shared memory
(Worker pid=72) n1:72:72 [1] NCCL INFO Channel 00 : 1[1b000] -> 0[1a000] via direct shared memory
"""
SRUN = """\
 0: n1:71:71 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
 1: \x1b[36mn1:72:72 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\x1b[0m
10: n2:73:73 [0] NCCL INFO Channel 00/0 : 10[0] -> 11[1] via P2P/CUMEM
"""
NEW = """\
n1:71:71 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
n1:71:71 [0] NCCL INFO cudaDriverVersion 13000
n1:71:71 [0] NCCL INFO NCCL version 2.29.2+cuda13.0
n1:71:90 [0] NCCL INFO NET/Plugin: Successfully loaded external network plugin libnccl-net-x.so
n1:71:90 [0] NCCL INFO NET/IB: [0] mlx5_0:uverbs0:1/RoCE provider=Mlx5 speed=100000 context=0x7f pciPath=/sys ar=0
n1:71:90 [0] NCCL INFO Using network IB
n1:71:90 [0] NCCL INFO [Rank 0] ncclCommInitRank comm 0x5 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 17000 \
commId 0x54 - Init START
n1:71:90 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
n1:71:90 [0] NCCL INFO 24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
n1:71:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read
n1:71:90 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0(1)/GDRDMA(PCI)/Shared
n1:71:90 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 17000 \
commId 0x54 - Init COMPLETE
n1:71:90 [0] NCCL INFO ncclCommSplit comm 0x6 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 17000 parent 0x5 \
splitCount 1 color 0 key 0- Init START
 comm 0x8 rank 3 nranks 4 cudaDev 3 nvmlDev 3 busId c6000 commId 0x54 - Init COMPLETE
"""


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (
            OLD,
            JobFacts(
                nccl="2.4.8+cuda10.1",
                ranks=2,
                nodes=("n1",),
                communicators=(2,),
                communicators_begun=1,
                communicators_complete=1,
                interfaces=("ens3",),
                network=("IB",),
                transports={"NET/IB": 2},
                gpudirect=False,
            ),
        ),
        (
            MPIRUN,
            JobFacts(
                launcher="mpirun",
                nccl="2.10.3+cuda11.3",
                ranks=2,
                nodes=("n1", "n2"),
                communicators=(2,),
                communicators_begun=2,
                communicators_complete=2,
                rings=2,
                interfaces=("eth0",),
                network=("AWS Libfabric",),
                transports={"NET/AWS Libfabric/GDRDMA": 1},
                gpudirect=True,
            ),
        ),
        (RAY, JobFacts(launcher="ray", nodes=("n1",), transports={"direct shared memory": 2})),
        (SRUN, JobFacts(launcher="srun", ranks=3, nodes=("n1", "n2"), transports={"P2P/CUMEM": 3})),
        (
            NEW,
            JobFacts(
                nccl="2.29.2+cuda13.0",
                driver_cuda="13.0",
                ranks=4,
                nodes=("n1",),
                communicators=(2, 4),
                communicators_begun=3,
                communicators_complete=2,
                rings=24,
                interfaces=("eth0",),
                nics=("mlx5_0",),
                plugins=("libnccl-net-x.so",),
                network=("IB",),
                transports={"NET/IB/GDRDMA/Shared": 1, "P2P/direct pointer/read": 1},
                gpudirect=True,
                nvls=True,
            ),
        ),
        ("NCCL version 2.21.5+cuda12.4\nepoch 1\n", JobFacts(nccl="2.21.5+cuda12.4")),
    ],
    ids=[
        "2.4",
        "2.10 under mpirun",
        "under Ray",
        "under srun -l, which aligns numbers",
        "2.29 with a torn line",
        "only the version",
    ],
)
def test_facts_are_read_from_nccl_output_of_each_release(text: str, facts: JobFacts, tmp_path: Path):
    (tmp_path / "job.out").write_text(text)
    report = logs([str(tmp_path / "job.out")]).report

    assert isinstance(report, LogsReport)
    assert report.facts == facts


HOSTS = """\
n1:71:90 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
n1:71:90 [0] NCCL INFO comm 0x5 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
"""
ONE_HOST = HOSTS.replace("nNodes 2", "nNodes 1")
TCP = "n1:71:90 [0] NCCL INFO Using network Socket\n"
NO_IB = "n1:71:90 [0] NCCL INFO NET/IB : No device found.\n"
MLX = "n1:71:90 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
RECEIVES = "n1:71:90 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0"
SENDS = RECEIVES.replace("receive", "send")
SHM = "n1:71:90 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HOSTS + MLX + TCP, ["DDJ201 warning RDMA devices exist (mlx5_0)"]),
        (HOSTS + NO_IB + TCP, ["DDJ201 info NCCL found no RDMA device"]),
        (
            HOSTS + "n1:71:90 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n" + TCP,
            ["DDJ201 warning NCCL_IB_DISABLE=1 disables RDMA"],
        ),
        (
            HOSTS
            + "n1:71:90 [0] NCCL INFO NET/OFI aws_ofi_init:1304 NCCL WARN Could not find any optimal provider\n"
            + TCP,
            ["DDJ201 warning AWS's plug-in found no EFA device"],
        ),
        (
            HOSTS + "n1:71:90 [0] NCCL INFO Failed to open libibverbs.so[.1]\n" + TCP,
            ["DDJ201 warning libibverbs.so is missing"],
        ),
        (ONE_HOST + NO_IB + TCP, []),
        (
            HOSTS + MLX + "n1:71:90 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n" + RECEIVES,
            ["DDJ202 warning it found neither nvidia_peermem nor dma-buf"],
        ),
        (HOSTS + RECEIVES, ["DDJ202 info NCCL copies data between nodes through host memory, without GPUDirect RDMA"]),
        (HOSTS + RECEIVES + "/GDRDMA\n" + SENDS, []),
        (HOSTS.replace("eth0", "docker0"), ["DDJ203 warning NCCL on n1 uses docker0, which reaches no other node"]),
        (
            "n1:71:90 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n" + SHM,
            ["DDJ204 warning NCCL_P2P_DISABLE=1"],
        ),
        (
            "n1:71:90 [0] NCCL INFO P2P is disabled between connected GPUs 0 and 1. You can repress this\n" + SHM,
            ["DDJ204 warning the driver refuses it between connected GPUs 0 and 1"],
        ),
        (
            "n1:71:90 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS\n" + SHM,
            ["DDJ204 info GPUs on n1 exchange data through host memory, without P2P"],
        ),
        (SHM, ["DDJ204 info GPUs on n1 exchange data through host memory, without P2P"]),
        (SHM.replace("SHM/direct/direct", "P2P/CUMEM"), []),
    ],
)
def test_fallback_of_nccl_is_reported_without_failing_the_job(text: str, found: list[str], tmp_path: Path):
    (tmp_path / "job.out").write_text(f"{text}\nTraining complete\n")
    report = logs([str(tmp_path / "job.out")]).report

    assert [f"{f.code} {f.severity.value} {f.title.rpartition(': ')[2]}" for f in report.findings] == found
    assert report.exit_code == 0


ROWS = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     8388608       2097152     float     sum      -1   510.30   16.44   16.44      0   508.00   16.51   16.51      0
    16777216       4194304     float     sum      -1     1020   16.45   16.45    N/A     1018   16.48   16.48    N/A
"""
OF_2_9 = "  8388608   2097152   float     sum   510.30   16.44   16.44  4e-07   508.00   16.51   16.51  4e-07\n"
JSON = (
    '{"args": ["./all_reduce_perf"], "config": {"devices": [{}, {}]}, "results": [{"size": 8388608, "count": 2097152,'
    ' "type": "float", "redop": "sum", "root": -1, "out_of_place": {"time": 510.3, "alg_bw": 16.44, "bus_bw": 16.44,'
    ' "nwrong": 0}}], "out_of_bounds": {"count": 0, "okay": true}}'
)
INSPECTOR = "".join(
    f'{{"header": {{"id": "0x7f", "rank": {rank}, "n_ranks": {ranks}}}, "coll_perf": {{"coll": "{operation}",'
    f' "coll_msg_size_bytes": 8388608, "coll_exec_time_us": {time_us}, "coll_algobw_gbs": {busbw},'
    f' "coll_busbw_gbs": {busbw}}}}}\n'
    for rank, ranks, operation, time_us, busbw in (
        (0, 2, "AllReduce", 400, 20),
        (1, 2, "AllReduce", 510, 16.44),
        (1, 2, "AllGather", 9999, 1),
        (0, 1, "AllReduce", 1, 900),
    )
)


@pytest.mark.parametrize(
    ("text", "bus_gb_per_s"),
    [
        (ROWS, {8388608: 16.44, 16777216: 16.45}),
        (OF_2_9, {8388608: 16.44}),
        (JSON, {8388608: 16.44}),
        (INSPECTOR + '{"header": {"ra', {8388608: 16.44}),
        ("# Collective test starting: reduce_scatter_perf\n" + ROWS, {}),
        (ROWS.replace("16.44   16.44", "16.44    8.22").replace("16.45   16.45", "16.45    8.22"), {}),
    ],
    ids=["nccl-tests", "rows of 2.9", "JSON", "the slower rank of Inspector", "reduce-scatter", "half the bus"],
)
def test_all_reduce_results_of_other_tools_become_measurements(
    text: str, bus_gb_per_s: dict[int, float], tmp_path: Path
):
    (tmp_path / "job.out").write_text(text if text.startswith("{") else f"{text}\n# Avg bus bandwidth : 9\n")
    report = logs([str(tmp_path / "job.out")]).report

    assert {
        measured.labels["bytes"]: measured.value / 1e9
        for measured in report.measurements
        if measured.name == "allreduce_busbw"
    } == pytest.approx(bus_gb_per_s)
    assert report.exit_code == 0
