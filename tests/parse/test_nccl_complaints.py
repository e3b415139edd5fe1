import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.parse.complaints import Kind, complaints, with_last_warning

PREFIX = "[2026-01-15 10:00:00] node0:52:81 [0] "
LINES: list[tuple[Kind, str]] = [
    (
        "shm",
        "misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-A1 to 9637892 bytes, error: No space left",
    ),
    ("shm", "include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-25 (size 9637888)"),
    ("shm", "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device"),
    ("nvls", "transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'"),
    ("nvls", "transport/nvls.cc:287 (ncclNvlsInit) NCCL WARN Cuda failure 801 'operation not supported'"),
    (
        "nvls",
        "transport/nvls.cc:254 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA",
    ),
    ("mnnvl", "mnnvl.cc:71 NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system. Check IMEX"),
    ("cumem-host", "transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between these two'"),
    ("p2p", "transport/p2p.cc:289 NCCL WARN Cuda failure 101 'invalid device ordinal'"),
    ("p2p", "transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported"),
    (
        "memlock",
        "misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12",
    ),
    ("memlock", "misc/ibvwrap.cc:252 NCCL WARN Call to ibv_create_cq failed : Cannot allocate memory"),
    (
        "rdma-timeout",
        "transport/net_ib.cc:84 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129",
    ),
    (
        "rdma-timeout",
        "transport/net_ib.cc:84 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with status=12 opcode=0",
    ),
    (
        "rdma-timeout",
        (
            "transport/net_ib/p2p.cc:84 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with"
            " status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129"
        ),
    ),
]
HARMLESS = [
    "transport/net_ib.cc:84 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with status=5 opcode=12 len=12",
    "transport/net_ib/p2p.cc:84 NCCL WARN NET/IB: Got completion with status=IBV_WC_WR_FLUSH_ERR(5) opcode=x(12)",
    "misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address errno 14",
    "transport/nvls.cc:254 NCCL INFO NVLS multicast support is available on dev 0",
    "enqueue.cc:1700 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
    "misc/shmutils.cc:87 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-A1 (size 0)",
    "init.cc:20 NCCL WARN MNNVL is not supported on this system",
]


@pytest.mark.parametrize(("kind", "line"), LINES, ids=[line[:60] for _, line in LINES])
def test_a_line_of_each_kind_is_known_by_its_words(kind: Kind, line: str):
    (found,) = complaints(f"{PREFIX}NCCL INFO Bootstrap: Using eth0\n{PREFIX}{line}\n")

    assert found.kind == kind
    assert "NCCL WARN" not in found.text
    assert found.text in line


@pytest.mark.parametrize("line", HARMLESS, ids=[line[:60] for line in HARMLESS])
def test_other_words_of_nccl_are_none(line: str):
    assert complaints(PREFIX + line) == ()


def test_one_of_a_kind_is_enough():
    assert len(complaints("\n".join(PREFIX + line for _, line in LINES))) == len({kind for kind, _ in LINES})


def test_a_missing_permission_is_told_from_missing_room():
    (denied,) = complaints("Error: failed to create shared memory file /dev/shm/nccl-A, error Permission denied (13)")

    assert denied.denied


@given(st.text(max_size=400), st.sampled_from([line for _, line in LINES]))
def test_any_text_is_read_and_what_is_kept_is_short(text: str, line: str):
    for found in complaints(f"{text}{line}{text}"):
        assert len(found.text) <= 300
        assert "\n" not in found.text


MEMORY = "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12"


def test_nccls_last_error_behind_an_exception_of_nccl2_is_known_as_in_a_log():
    (found,) = complaints(f"NCCL AllReduce failed: unhandled system error \nNCCL Last Error: {MEMORY}")
    assert (found.kind, found.text) == ("memlock", MEMORY)


def test_an_exception_without_nccls_last_error_gets_the_last_warning_of_the_log():
    log = f"{PREFIX}init.cc:1 NCCL WARN first\n{PREFIX}misc/ibvwrap.cc:252 NCCL WARN {MEMORY}\n{PREFIX}NCCL INFO done\n"
    told = with_last_warning("Failed to initialize NCCL communicator: unhandled system error", log)
    assert told == f"Failed to initialize NCCL communicator: unhandled system error\nLast error:\n{MEMORY}"


@pytest.mark.parametrize(
    ("message", "log"),
    [
        ("NCCL error in: NCCLUtils.cpp:94\nLast error:\nno space", f"NCCL WARN {MEMORY}"),
        ("NCCL AllReduce failed: x \nNCCL Last Error: no space", f"NCCL WARN {MEMORY}"),
        ("the data set is empty", f"NCCL WARN {MEMORY}"),
        ("Failed to initialize NCCL communicator: internal error", "NCCL INFO done"),
    ],
)
def test_other_exceptions_stay_as_they_are(message: str, log: str):
    assert with_last_warning(message, log) == message
