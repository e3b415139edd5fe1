"""Messages of NCCL and torch before they fail, as rules of ``run`` read them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.app import judge
from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.features.jobs.table import SIGNS
from ddp_doctor.model.trial import Raised, RankEvidence
from ddp_doctor.views.failed_trials import complaints, words_of
from tests.recordings import load

PREFIX = "[2026-01-15 10:00:00] node0:52:81 [0] "
#: Output of NCCL by code and known cause.
SAID = {
    ("DD237", "shm-too-small"): [
        "NCCL WARN Error: failed to extend /dev/shm/nccl-A to 9637892 bytes, error: No space left on device",
        "include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-25 (size 9637888)",
        "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
    ],
    ("DD444", ""): [
        "transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'",
        "transport/nvls.cc:287 (ncclNvlsInit) NCCL WARN Cuda failure 801 'operation not supported'",
        "transport/nvls.cc:254 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA",
    ],
    ("DD445", "imex-not-working"): [
        "mnnvl.cc:71 NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system. Check IMEX"
    ],
    ("DD446", "cumem-host-unsupported"): [
        "transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between these two'"
    ],
    ("DD446", ""): [
        "transport/p2p.cc:289 NCCL WARN Cuda failure 101 'invalid device ordinal'",
        "transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported",
    ],
    ("DD238", "memlock-limit"): [
        "misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12",
        "misc/ibvwrap.cc:252 NCCL WARN Call to ibv_create_cq failed : Cannot allocate memory",
    ],
    ("DD584", "ib-fabric-fault"): [
        "transport/net_ib.cc:84 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129",
        "transport/net_ib.cc:84 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with status=12 opcode=0",
        "NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=SEND(0)",
    ],
}
LINES = [(*known, line) for known, lines in SAID.items() for line in lines]
HARMLESS = [
    "transport/net_ib.cc:84 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with status=5 opcode=12 len=12",
    "transport/net_ib/p2p.cc:84 NCCL WARN NET/IB: Got completion with status=IBV_WC_WR_FLUSH_ERR(5) opcode=x(12)",
    "misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address errno 14",
    "transport/nvls.cc:254 NCCL INFO NVLS multicast support is available on dev 0",
    "enqueue.cc:1700 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'",
    "misc/shmutils.cc:87 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-A1 (size 0)",
    "init.cc:20 NCCL WARN MNNVL is not supported on this system",
]


@pytest.mark.parametrize(("run_code", "cause", "line"), LINES, ids=[line[:60] for *_, line in LINES])
def test_message_of_each_rule_is_recognized(run_code: str, cause: str, line: str):
    (found,) = complaints(f"{PREFIX}NCCL INFO Bootstrap: Using eth0\n{PREFIX}{line}\n")

    assert found[:2] == (run_code, cause)
    assert "NCCL WARN" not in found[2]
    assert found[2] in line


def test_each_code_of_a_sign_belongs_to_a_rule():
    assert {sign.run_code for sign, _ in SIGNS.values() if sign.run_code} <= {rule.code for rule in all_rules()}


@pytest.mark.parametrize("line", HARMLESS, ids=[line[:60] for line in HARMLESS])
def test_other_messages_of_nccl_are_not_complaints(line: str):
    assert complaints(PREFIX + line) == []


@pytest.mark.parametrize(
    "line",
    [
        "Error: failed to create shared memory file /dev/shm/nccl-A, error Permission denied (13)",
        "NCCL WARN Error: failed to open /dev/shm/nccl-A1b2C3: Permission denied (13)",
        "Error: failed to create shared memory file /dev/shm/nccl-A, error Operation not permitted (1)",
    ],
)
def test_missing_permission_is_distinguished_from_missing_space(line: str):
    ((_, cause, _),) = complaints(line)

    assert cause == "shm-permission"


def test_forbidden_segment_is_not_a_lack_of_space():
    recording = load("nccl/shared-memory-not-writable")
    follows = f"{PREFIX}include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-x (size 9637888)"
    ranks = recording.trials[0].evidence
    both = [rank.model_copy(update={"output_tail": f"{rank.output_tail}{follows}\n"}) for rank in ranks]
    trial = recording.trials[0].model_copy(update={"evidence": tuple(both)})

    report = judge(recording.model_copy(update={"trials": (trial,)})).report

    (found,) = [finding for finding in report.findings if finding.code == "DD237"]
    assert found.title.endswith("no permission to write to /dev/shm")


@given(st.text(max_size=400), st.sampled_from([line for *_, line in LINES]))
def test_any_text_is_read_and_the_kept_text_is_short(text: str, line: str):
    for *_, words in complaints(f"{text}{line}{text}"):
        assert len(words) <= 300
        assert "\n" not in words


MEMORY = "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory errno 12"


def test_long_line_takes_linear_time():
    line = "5" * 200_000 + " Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
    began = time.process_time()

    assert complaints(line)
    assert time.process_time() - began < 2


def test_nccls_last_error_behind_an_exception_of_nccl2_is_known_as_in_a_log():
    found = complaints(f"NCCL AllReduce failed: unhandled system error \nNCCL Last Error: {MEMORY}")

    assert found == [("DD238", "memlock-limit", MEMORY)]


def raised(message: str, log: str) -> RankEvidence:
    return RankEvidence(rank=0, raised=Raised(type="RuntimeError", message=message), output_tail=log)


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
    assert words_of(raised(message, log)) == message
