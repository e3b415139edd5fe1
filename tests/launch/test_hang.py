"""The function that finds the blocking rank, on constructed evidence that no single machine can produce."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.engine.hang.judge import judge
from ddp_doctor.knowledge.victims import blames_peer
from ddp_doctor.model.trial import FlightEntry, Raised, RankEvidence, Step
from tests.readings import trial_of


def step(seq: int = 1, *, left: bool = False, check: str = "allreduce", peers=(), detail="float32 [8]", name=None):
    return Step(
        check=check,
        name=name or ("send_recv" if peers else "all_reduce"),
        seq=seq,
        detail=detail,
        peers=tuple(peers),
        entered_at=float(seq),
        left_at=seq + 0.1 if left else None,
        where="train.py:88",
    )


def rank(number: int, *steps: Step, **fields) -> RankEvidence:
    return RankEvidence(rank=number, began=True, state="S", steps=steps, **fields)


def blamed(*evidence: RankEvidence, **fields: Any) -> tuple[str, tuple[int, ...]]:
    found = judge(trial_of(*evidence, **fields))
    return found.kind, found.suspects


def flight(op: str = "all_reduce", *sizes: int, seq: int = 5, retired: bool = False) -> FlightEntry:
    return FlightEntry(seq=seq, op=op, sizes=(tuple(sizes),), dtypes=("Float",), retired=retired)


WAITING = step(3)
WRONG_SIZE = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "[enforce fail at gloo/transport/tcp/pair.cc:462] op.preamble.length <= op.nbytes. 64 vs 32"
)
PEER_GONE = (
    "terminate called after throwing an instance of 'gloo::IoException'\n"
    "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:29133"
)
TORCH = "/lib/python3.11/site-packages/torch"
ASKS_THE_STORE = {
    "flight": (FlightEntry(seq=0, op="all_reduce", sizes=((),), dtypes=("Float",), retired=True),),
    "stack": (
        "ddp_doctor/features/model/user_model/probing/probe.py:120 in compare",
        "/x/ddp_doctor/ranks/store.py:37 in exchange",
    ),
}
BUSY = {"stack": ("train.py:91 in read_next",)}


@pytest.mark.parametrize("name", ["matmul", "copy", "host_copy", "measured_step"])
def test_ranks_that_all_compute_do_not_wait_for_a_link(name: str):
    """Seen with NCCL 2.27.5 on planted GPUs, whose products take the CPU longer than the check has."""
    busy = step(2, check="gpu_speed", name=name)
    assert judge(trial_of(*(rank(n, busy) for n in range(2)))).kind == "unsure"


def test_no_rank_is_blamed_if_all_ranks_are_stopped():
    all_stopped = [rank(n, WAITING).model_copy(update={"state": "T"}) for n in range(3)]
    assert judge(trial_of(*all_stopped)).suspects == ()


def on_node(number: int, count_s: float, died_s: float, code: int) -> RankEvidence:
    """A rank of the node of its number, whose agent counts ``count_s`` seconds more than the others'."""
    one = step(2, left=True)
    moved = {"entered_at": one.entered_at + count_s, "left_at": one.left_at and one.left_at + count_s}
    own = rank(number, one.model_copy(update=moved), WAITING, exit_code=code, exited_at=count_s + died_s)
    return own.model_copy(update={"node": number})


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_first_death_of_two_nodes_is_found_despite_a_clock_one_hour_ahead(ahead_s):
    first, echo = on_node(1, ahead_s, 4.0, code=-11), on_node(2, 0.0, 5.0, code=1)
    assert blamed(rank(0, WAITING), first, echo, outcome="broken") == ("died", (1,))


def test_ranks_that_crash_in_one_place_seconds_apart_have_one_cause():
    dead = [rank(n, WAITING, exit_code=-8, exited_at=2.0 + n) for n in range(3)]
    assert blamed(*dead, outcome="broken") == ("died-everywhere", ())


ABORTED = "Fatal Python error: Aborted\n\nCurrent thread 0x0 (most recent call first):\n  "
OWN_ABORT, ABORTED_BY_A_THREAD = f'{ABORTED}File "a.py", line 7 in make\n', f"{ABORTED}<no Python frame>\n"


@pytest.mark.parametrize(
    ("code", "where", "output", "judged"),
    [
        pytest.param(-9, WAITING, "", ("died-everywhere", ()), id="killed in a collective"),
        pytest.param(0, step(2, left=True), "", ("died-everywhere", ()), id="exited after it"),
        pytest.param(-6, step(2, left=True), OWN_ABORT, ("died-everywhere", ()), id="aborted by its code after it"),
        pytest.param(-6, step(2, left=True), ABORTED_BY_A_THREAD, ("died", (0,)), id="aborted by a thread after it"),
        pytest.param(-6, WAITING, OWN_ABORT, ("died", (0,)), id="aborted in a collective"),
    ],
)
def test_ranks_that_exit_in_one_place_without_blaming_a_peer_have_one_cause(code, where, output, judged):
    """On a machine whose cores are all busy, one runs on half a second after the other."""
    dead = [rank(n, where, exit_code=code, exited_at=2.0 + n / 2, output_tail=output) for n in range(2)]
    assert blamed(*dead, outcome="broken") == judged


def test_ranks_that_crash_in_different_places_have_separate_causes():
    first = rank(0, step(1), exit_code=-11, exited_at=2.0)
    assert blamed(first, rank(1, WAITING, exit_code=-11, exited_at=4.0), outcome="broken") == ("died", (0,))


def untold(number: int, **fields: Any) -> RankEvidence:
    """Return a torchrun rank that has exited without a code from torchrun."""
    return rank(number, WAITING, exit_code=0, exited_at=2.0).model_copy(update=fields)


def test_torchrun_rank_with_a_reported_signal_died_first():
    ranks = (untold(0), untold(1, exit_code=-9), untold(2, exit_code=-15))
    assert blamed(*ranks, outcome="broken", launcher="torchrun") == ("died", (1,))


@pytest.mark.parametrize("began", [True, False])
def test_ranks_without_a_report_from_torchrun_blame_no_rank(began):
    ranks = [untold(n, began=began, exit_code=0 if began else 1) for n in range(2)]
    assert blamed(*ranks, outcome="broken", launcher="torchrun") == ("unsure", ())


def test_a_rank_that_still_computes_on_its_way_to_the_others_is_not_blamed():
    importing = RankEvidence(rank=1, state="R", cpu_s_per_s=0.4)
    found = judge(trial_of(rank(0, step(1)), importing))
    assert (found.kind, found.suspects) == ("unsure", ())

    silent = RankEvidence(rank=2, state="S", cpu_s_per_s=0.0)
    assert judge(trial_of(rank(0, step(1)), importing, silent)).suspects == (2,)


def test_rank_without_a_processor_on_a_busy_machine_is_not_blamed():
    starved = rank(1, step(2, left=True), cpu_granted=0.01).model_copy(update={"state": "R"})
    assert blamed(rank(0, WAITING), starved) == ("unsure", ())

    looping = starved.model_copy(update={"cpu_granted": 0.03, "cpu_s_per_s": 0.01})
    assert blamed(rank(0, WAITING), looping) == ("never-entered", (1,))

    asleep = rank(2, step(2, left=True), cpu_granted=0.01)
    assert blamed(rank(0, WAITING), starved, asleep) == ("never-entered", (2,))

    elsewhere = starved.model_copy(update={"node": 1})
    assert blamed(rank(0, WAITING), elsewhere) == ("never-entered", (1,))


def test_one_of_two_ranks_outside_of_its_announced_call_is_the_suspect():
    calls = [flight("all_reduce", 8), flight("all_reduce", 16)]
    assert blamed(*(rank(n, WAITING, flight=(call,)) for n, call in enumerate(calls))) == ("mismatch", (1,))


def test_an_aborted_receiver_is_not_blamed_for_its_peers_wrong_size():
    aborted = rank(0, WAITING, exit_code=-6, exited_at=1.0, output_tail=WRONG_SIZE)
    other = rank(1, WAITING, flight=(flight("all_reduce", 16),))
    assert blamed(aborted, other, outcome="broken") == ("mismatch", (1,))


def test_partner_that_waits_for_no_rank_is_missing_from_the_transfer():
    found = judge(trial_of(rank(0, step(1, peers=[1])), rank(1, step(1, left=True, peers=[2]))))
    assert (found.kind, found.suspects, found.waiting) == ("never-entered", (1,), (0,))


def test_a_partner_that_left_the_transfer_is_not_missing_from_it():
    assert blamed(rank(0, step(1, peers=[1])), rank(1, step(1, left=True, peers=[0]))) == ("unsure", ())


def test_a_chain_of_waiting_pairs_names_the_pair_at_its_end():
    ranks = (
        rank(0, step(2, peers=[1])),  # waits for 1, which still waits for 2
        rank(1, step(1, peers=[2])),
        rank(2, step(1, peers=[1])),
        rank(3, step(2, peers=[2])),
    )
    assert judge(trial_of(*ranks)).pairs == ((1, 2),)


# --- places ---------------------------------------------------------------------------------------


def test_rank_in_a_step_that_all_others_left_never_entered_the_next_one():
    forward, backward = step(4, name="forward"), step(5, name="backward")
    ahead = (step(4, name="forward", left=True), backward)
    found = judge(trial_of(rank(0, *ahead), rank(1, forward, **BUSY), rank(2, *ahead)))
    assert (found.kind, found.suspects, found.waiting) == ("never-entered", (1,), (0, 2))
    assert found.step == backward


@pytest.mark.parametrize("ranks", [2, 4])
def test_rank_that_reported_late_is_not_blamed_for_a_step_it_entered(ranks):
    ahead = (step(17, left=True), step(18))
    found = judge(trial_of(*(rank(n, *((step(17),) if n == 1 else ahead)) for n in range(ranks))))
    assert (found.kind, found.suspects) == ("unsure", ())
    assert (found.step, found.waiting) == (step(17), (1,))


def test_rank_outside_the_collective_is_blamed_not_one_waiting_inside():
    ahead = (step(4, name="forward", left=True), step(5, name="backward"))
    inside = rank(3, step(4, name="forward"), flight=(flight("broadcast", 8),))
    stalls = rank(4, step(4, name="forward"), **BUSY)
    assert blamed(*(rank(n, *ahead) for n in range(3)), inside, stalls) == ("never-entered", (4,))


RECORDED = {"flight": (flight("broadcast", 13584),)}
SEEN = {"stack": ("steps.py:40 in wrap", f"{TORCH}/distributed/utils.py:326 in _sync_params_and_buffers")}


@pytest.mark.parametrize("inside", [RECORDED, SEEN], ids=["flight recorder", "stack"])
def test_rank_that_only_receives_is_not_blamed_for_data_lost_on_its_link(inside):
    wrapping = step(1, name="ddp_construct")
    ahead = (step(1, name="ddp_construct", left=True), step(3, name="backward"))
    found = judge(trial_of(rank(0, *ahead), rank(1, wrapping, **inside)))
    assert (found.kind, found.suspects, found.pairs) == ("pair", (), ((0, 1),))
    assert (found.step, found.waiting) == (wrapping, (1,))


def test_rank_outside_of_ended_collectives_is_the_suspect():
    stalls = {"flight": (flight(retired=True),), "stack": ("train.py:91 in read_next",)}
    ahead = (step(4, name="forward", left=True), step(5, name="backward"))
    assert blamed(rank(0, *ahead), rank(1, step(4, name="forward"), **stalls)) == ("never-entered", (1,))


def test_a_rank_that_left_the_collective_is_not_missing_from_it():
    assert blamed(rank(0, step(17, left=True)), rank(1, step(17))) == ("unsure", ())


def test_half_of_the_ranks_one_step_behind_blame_no_rank():
    ahead = (step(17, left=True), step(18))
    assert blamed(rank(0, *ahead), rank(1, step(17)), rank(2, step(17)), rank(3, *ahead)) == ("unsure", ())


# --- exceptions of many ---------------------------------------------------------------------------

UNKNOWN = Raised(type="DistBackendError", message="NCCL error: unhandled cuda error", where="a.py:1")


def test_ranks_that_raised_equally_are_not_blamed_if_one_never_entered():
    failed = [rank(n, WAITING, raised=UNKNOWN) for n in (0, 2, 3)]
    assert blamed(*failed, rank(1, step(2, left=True)), outcome="broken") == ("never-entered", (1,))


# --- a victim's words -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        "Connection reset by peer",
        "Timed out waiting 20000ms for recv operation",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed",
        "connect to 10.0.0.2 failed : Connection timed out",
        "No route to host",
        "NCCL communicator was aborted on rank 1",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)",
        "Application timeout caused pair closure",
        "The client socket has timed out after 600000ms while trying to connect",
        "store->get('0') got error: Timeout waiting for key: default_pg/0//cuda//0 after 10000 ms",
        "NCCL error in: ProcessGroupNCCL.cpp:3, unhandled system error",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        "Failed to send, sent 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        "waitForInput: socket SocketImpl(fd=3) timed out after 600000ms",
        "Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
        "The client socket has failed to connect to any network address of (node0, 29400).",
        "Software caused connection abort",
        "NCCL operation timed out",
        "Watchdog caught collective operation timeout: NCCL operation timed out",
        "[TC][rank=1][name=default_pg] Operation timed out after 600000 ms",
        "NCCL operation failed",
        "NCCL communicator was aborted after a previous error",
        "Work timed out during finalize",
        "Failed to initialize NCCL communicator timed out after 600000 ms",
        "Failed to initialize NCCL communicator: remote process exited or there was a network error",
        "NCCL AllReduce failed: unhandled system error \nNCCL Last Error: Connection closed by remote peer node1<4>",
        "nccl hit async error on rank 1: remote process exited or there was a network error",
        "nccl hit async error on rank 1: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ],
)
def test_messages_that_blame_a_peer_are_known(message):
    assert blames_peer(message)


NCCL_SAYS = "NCCL error in: NCCLUtils.cpp:94, {}, NCCL version 2.27.5\n{}\nLast error:\n{}"
#: Seen over NCCL 2.27.5 between ranks with different settings, and of gloo's and torch's own comparisons.
UNFIT = [
    NCCL_SAYS.format("internal error", "ncclInternalError", "Message truncated : received 1024 bytes instead of 512"),
    NCCL_SAYS.format(
        "internal error", "ncclInternalError", "Bootstrap Root : mismatch in info from procs, nranks 2 vs 3"
    ),
    NCCL_SAYS.format(
        "internal error", "ncclInternalError", "Bootstrap Root : rank 1 of 3 ranks has already checked in"
    ),
    NCCL_SAYS.format("internal error", "ncclInternalError", "socketFinalizeAccept from 10.0.0.2<4>: wrong type 3 != 4"),
    NCCL_SAYS.format(
        "internal error",
        "ncclInternalError",
        "ncclSocketInit: connecting to address  with family 1 is neither AF_INET(2) nor AF_INET6(10)",
    ),
    "[enforce fail at gloo/transport/tcp/pair.cc:462] op.preamble.length <= op.nbytes. 64 vs 32",
    "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
    "Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(",
    "DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has inconsistent 2 params.",
    "params[0] in this process with sizes [4] appears not to match sizes of the same param in process 0.",
]


@pytest.mark.parametrize("message", UNFIT)
@pytest.mark.parametrize("reader", [0, 1])
def test_neither_rank_is_blamed_for_data_that_does_not_fit(message, reader):
    said = Raised(type="DistBackendError", message=message, where="p.py:44")
    ranks = (rank(n, WAITING, raised=said if n == reader else None) for n in range(2))
    assert blamed(*ranks, outcome="broken") == ("at-odds", ())


@pytest.mark.parametrize(
    "message",
    [
        NCCL_SAYS.format("internal error", "", "Cuda failure 1"),
        # nccl2 of torch 2.15 if another node has NCCL_MAX_NCHANNELS=2; seen on simulated GPUs.
        "NCCL AllReduce failed: internal error - please report this issue to the NCCL developers \nNCCL Last Error: ",
    ],
)
def test_library_error_next_to_disagreeing_ranks_is_a_consequence(message: str):
    unfit = Raised(type="DistBackendError", message=UNFIT[0], where="p.py:44")
    stumbled = unfit.model_copy(update={"message": message})
    assert blamed(rank(0, WAITING, raised=stumbled), rank(1, WAITING, raised=unfit), outcome="broken") == (
        "at-odds",
        (),
    )


@pytest.mark.parametrize("message", ["empty data set", NCCL_SAYS.format("", "", "x: No space left on device")])
def test_own_exception_of_a_rank_precedes_one_about_unfit_data(message):
    unfit = Raised(type="DistBackendError", message=UNFIT[0], where="p.py:44")
    own = Raised(type="ValueError", message=message, where="data.py:3")
    assert blamed(rank(0, WAITING, raised=unfit), rank(1, WAITING, raised=own), outcome="broken") == ("raised", (1,))


@pytest.mark.parametrize(
    "messages",
    [
        ("nvmlDeviceGetHandleByPciBusId() failed: Not Found",) * 2,
        ("nvmlDeviceGetHandleByPciBusId() failed: Not Found", "Cuda failure 'out of memory'"),
    ],
    ids=["one exception", "two exceptions"],
)
def test_ranks_that_all_raised_in_init_have_left_it_and_no_link_is_to_blame(messages):
    """NCCL calls both a system error, which a peer may cause as well: its last warning decides."""
    said = [NCCL_SAYS.format("unhandled system error", "ncclSystemError: …", words) for words in messages]
    ranks = [
        rank(n, init(), raised=Raised(type="DistBackendError", message=one, where="w.py:1", blames_peer=True))
        for n, one in enumerate(said)
    ]
    assert blamed(*ranks, outcome="broken") == ("raised-everywhere", ())


@pytest.mark.parametrize(
    "message",
    [
        NCCL_SAYS.format("unhandled system error", "ncclSystemError", "Failed to initialize any NET plugin"),
        NCCL_SAYS.format("unhandled system error", "ncclSystemError", "Call to ibv_create_qp failed with error 22"),
        "Unable to find address for: ib0",
        "unhandled system error\nLast error:\nBootstrap : no socket interface found",
        "ncclInvalidUsage\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000",
        "CUDA error: invalid device ordinal",
        "ncclSystemError: Error while creating shared memory segment: No space left on device",
        "nccl2 requires at least one CUDA device",
        "Failed to initialize NCCL communicator: invalid usage (run with NCCL_DEBUG=WARN for details)",
        "Failed to initialize NCCL communicator: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "Failed to initialize NCCL communicator: unhandled system error \nNCCL Last Error: no socket interface found",
        "NCCL AllReduce failed: invalid usage \nNCCL Last Error: Duplicate GPU detected : rank 1 and rank 0 both on",
        "ncclCommInitRankConfig failed: system error \nNCCL Last Error: Bootstrap : no socket interface found",
        "nccl hit async error on rank 1: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "ProcessGroupNCCL is bound to device cuda:0 but an operation was issued on cuda:1",
    ],
)
def test_message_about_the_ranks_own_host_does_not_blame_a_peer(message):
    assert not blames_peer(message)


# --- a watchdog that ends its rank ------------------------------------------------------------------


NEWER = "[TC][rank=1][name=default_pg] Aborting process on rank 1 due to "
OLDER = "[rank1]:[E] [PG ID 0 Rank 1] Process group watchdog thread terminated with exception: "
LONG_WAIT = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)"
MONITOR = "[rank1]:[F] Terminating the process after attempting to dump debug info, due to "
GAVE_UP = [
    NEWER + "timeout - timeout watchdog detected operation timeout\n",
    NEWER + "timeout - collective operation timed out\n",
    NEWER + "error - nccl hit async error: remote process exited or there was a network error\n",
    OLDER + LONG_WAIT,
    OLDER + LONG_WAIT + "\n" + MONITOR + "collective timeout or exception.",
    OLDER + "NCCL error: remote process exited or there was a network error\nLast error:\nsocketPoll: timed out",
    PEER_GONE,
]
FAILED_ITSELF = [
    NEWER + "error - nccl hit async error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n",
    NEWER + "error - timeout watchdog detected operation error\n",
    OLDER + "CUDA error: an illegal memory access was encountered",
    OLDER + "CUDA error: an illegal memory access\n" + MONITOR + "collective timeout or exception.",
    OLDER + "NCCL error: unhandled system error\nLast error:\nCall to ibv_reg_mr failed: Cannot allocate memory",
    MONITOR + "ProcessGroupNCCL watchdog hang.",
    "double free or corruption (out)",
]


def aborted(number: int, output: str, at: float = 600.0) -> RankEvidence:
    return rank(number, WAITING, exit_code=-6, exited_at=at, output_tail=output)


@pytest.mark.parametrize("output", GAVE_UP)
def test_rank_aborted_by_its_watchdog_is_not_blamed(output):
    absent = rank(1, step(2, left=True), **BUSY)
    assert blamed(aborted(0, output), absent, aborted(2, output, 600.1), outcome="broken") == ("never-entered", (1,))


@pytest.mark.parametrize("output", FAILED_ITSELF)
def test_rank_that_aborted_over_its_own_error_is_blamed(output):
    assert blamed(rank(0, WAITING), aborted(1, output), rank(2, WAITING), outcome="broken") == ("died", (1,))


# --- a backend that connects in init_process_group -----------------------------------------------------


IN_TORCH = {"stack": (f"{TORCH}/distributed/distributed_c10d.py:1830 in init_process_group",)}


def init(*, left: bool = False) -> Any:
    return step(1, left=left, check="process_group", name="init_process_group", detail="nccl")


def test_rank_that_hangs_in_the_kernel_in_init_is_blamed():
    stuck = rank(1, init()).model_copy(update={"state": "D"})
    through = rank(0, init(left=True), step(1, check="process_group"))
    assert blamed(through, stuck, *(rank(number, init(), **IN_TORCH) for number in (2, 3))) == ("uninterruptible", (1,))


def test_single_rank_that_is_left_in_init_is_not_blamed():
    waits = (init(left=True), step(1, check="process_group"))
    found = judge(trial_of(*(rank(number, *waits) for number in (0, 1, 2)), rank(3, init(), **IN_TORCH)))
    assert (found.kind, found.suspects, found.waiting) == ("left-behind", (), (3,))


@pytest.mark.parametrize(
    ("log", "suspects"),
    [("[TC][rank=0][name=] CUDA error during end event query: unspecified launch failure\n", (0,)), ("", ())],
)
def test_failed_work_blames_the_rank_only_if_its_log_names_its_gpu(log, suspects):
    failed = Raised(type="DistBackendError", message="NCCL operation failed", blames_peer=True)
    found = judge(trial_of(rank(0, WAITING, raised=failed, output_tail=log), rank(1, WAITING), outcome="broken"))
    assert found.suspects == suspects


# --- a lossy link, whatever the collective -----------------------------------------------------------


WORDS = st.sampled_from(["backward", "ddp_construct", "exchange", "all_reduce"])


@given(
    names=st.lists(WORDS, min_size=8, max_size=8),
    lost=st.integers(1, 5),
    ahead=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    says=st.lists(st.sampled_from(["recorder", "stack", "store", "nothing"]), min_size=6, max_size=6),
)
def test_no_rank_is_suspected_if_a_link_between_two_loses_data(names, lost, ahead, says):
    """One rank waits for lost data. Its peers only sent, or continue to one of the next steps and wait there."""
    steps = [step(seq, name=name, detail="") for seq, name in enumerate(names)]
    evidence = []
    for number, further in enumerate([0, *ahead]):
        place = lost + further
        passed = [step(seq, name=names[seq], detail="", left=True) for seq in range(1, place)]
        said: dict[str, dict[str, Any]] = {
            "recorder": {"flight": (flight(names[place], 8, seq=place),)},
            "stack": SEEN,
            "store": ASKS_THE_STORE,
            "nothing": {},
        }
        evidence.append(rank(number, *passed, steps[place], **said[says[number]]))

    found = judge(trial_of(*evidence))

    assert found.suspects == ()
    assert found.kind in {"pair", "left-behind", "all-entered", "unsure"}
    assert all(0 in pair for pair in found.pairs)


def test_ranks_that_all_compute_in_a_step_of_the_job_wait_for_no_link():
    busy = step(3, name="sharded_step")
    assert judge(trial_of(*(rank(number, busy, **BUSY) for number in range(2)))).kind == "unsure"


# --- groups of an axis of a mesh ----------------------------------------------------------------------


def of_axis(seq: int, first: int) -> Step:
    """A step of the axis whose groups are two neighboring ranks."""
    made: Step = step(seq, name="all_gather")
    return made.model_copy(update={"axis": "shard", "members": (first, first + 1)})


def test_each_waiting_group_has_its_own_absent_rank():
    found = judge(
        trial_of(*(rank(at, of_axis(3, at // 2 * 2)) if at % 2 else rank(at, step(2, left=True)) for at in range(4)))
    )
    assert (found.kind, found.suspects, found.waiting) == ("never-entered", (0, 2), (1, 3))
