"""Deadlines and intervals of ddp-doctor, in seconds.

CHECK_S and FIRST_NCCL_S are the contract's default deadlines (docs/explanation/hangs.md). The others keep the report of
a hang within the check's deadline plus 3 s, as the test suite measures.
"""

from ddp_doctor.model.recording import Options

#: A rank check, from the moment its first rank entered it.
CHECK_S = 10.0
#: From init_process_group to the end of the first NCCL collective. The ranks are given their device, so they connect
#: inside init_process_group; the first collective loads kernels and may connect the GPUs one by one.
FIRST_NCCL_S = 60.0
#: … and if no rank does anything for this long, the check is evaluated immediately (ranks/idle_ranks.py): no rank
#: computes, compiles, reads or writes, so no progress will follow. A hang must be reported within 20 s.
STILL_S = 15.0
#: Interval between two tests for that.
LOOK_S = 1.0
#: A rank that uses less processor time than this is idle: waiting ranks used 0.00 to 0.01 s in 5 s, and a library's
#: polling threads use a hundredth of a core (judgment).
STILL_CPU_S_PER_S = 0.03
#: From the fork of the workers or of the control store until each has reported.
WORKER_START_S = 15.0
#: Import of torch in the forkserver; a cold import from a shared file system takes tens of seconds.
IMPORT_S = 60.0
#: A check with progress in the last second is extended once, by this share of its deadline.
EXTENSION = 0.5
#: Time that a process waits for a processor does not count toward a limit. These are the maximum extensions: as a
#: multiple of the limit, and in seconds for the deadline of a check (judgment).
MOST_QUEUED = 3.0
MOST_QUEUED_S = 30.0
#: A rank that wanted a processor for at least LOOK_S and had one for less than this share of that time may still
#: arrive. In a check of CHECK_S, a rank that had a larger share has run for a second (judgment).
STARVED_SHARE = 0.025
#: Time for the errors of other ranks to arrive after a rank died or raised.
ECHO_GRACE_S = 0.7
#: … and for ranks outside any step to arrive, or to exit for the same reason: if all cores are busy, ranks that import
#: and build one model are seconds apart.
ON_ITS_WAY_S = 5.0
#: Time for the workers' second threads to answer; one second is long for a process that still runs.
STACK_DUMP_S = 0.8
#: Between two samples of a flight recorder whose finished entries are retired by a watchdog that wakes once a second
#: (nccl2: torch 2.15 c10d/hooks/FlightRecorderHook.hpp).
RECORDER_LAG_S = 2.0
#: From SIGTERM to SIGKILL of finished workers; NCCL frees its memory in this time.
DISMISS_S = 1.0
#: From SIGKILL until a process counts as uninterruptible, or MOST_QUEUED_S if it still runs.
KILL_S = 1.0
#: A gap in the agent's own clock that means it was stopped, not that its workers hang.
AGENT_PAUSE_S = 1.0
#: A process of ddp-doctor that is seen stopped for this long is lost. Ctrl-Z stops the agent as well, and a debugger
#: that only looks resumes it immediately.
HELPER_STOPPED_S = 2.0
#: Minimum time for one pair of ranks in the p2p check.
PAIR_S = 5.0
#: Ranks that share a core are slower without a fault: deadlines grow with ranks per core beyond this.
RANKS_PER_CORE = 4.0
#: A step that one rank enters this long after the median rank is worth recording.
LATE_ENTRY_S = 1.0
#: … and worth a warning. The worst delay of 2 to 8 healthy ranks was 0.12 s with both cores of the test
#: machine kept busy (docs/explanation/hangs.md); machines may be much busier.
LATE_RANK_S = 2.0

# --- many nodes -----------------------------------------------------------------------------------

#: Between two heartbeats of an agent, which show the other agents that it is alive.
BEAT_S = 0.1
#: Between two rounds of the process that talks to the control store, on a few nodes …
TURN_S = 0.02
#: … and on many: this much more for each node, up to the maximum. One thread serves the store and needs 15 us for each
#: of about four requests per round (measured, torch 2.13), which takes a quarter of a core for 80 to 2,000 nodes.
TURN_OF_A_NODE_S = 0.00025
LONGEST_TURN_S = 0.5
#: A node without a new heartbeat for this long is suspected. The longest gap of 4 healthy agents was 0.17 s, on two
#: cores that torchrun's start kept busy (docs/explanation/many-nodes.md).
SILENT_S = 6.0
#: Time for the other nodes to report whether the suspect answers them.
CONFIRM_S = 2.5
#: A name that does not resolve for this long will not.
UNRESOLVED_S = 6.0
#: Connection attempts that only time out, or find no route, for this long indicate a firewall instead of a late start.
#: A refused attempt means that the host is up, and is worth waiting for.
UNREACHABLE_S = 12.0
#: One connection attempt.
CONNECT_S = 4.0
#: A server that accepted a connection and sends nothing for this long is not the control store.
MUTE_S = 6.0
#: Time for every node to send its readings of a trial, beyond the time its own agent needs.
HAND_IN_S = 8.0
#: Time for every responding node to receive the report, before the head stops the store. It is longer than a silent
#: node's time (SILENT_S), because a node without the report concludes that the head is lost.
FAREWELL_S = 8.0


def turn_s(nnodes: int) -> float:
    """Return the time between two rounds with the control store for this many nodes."""
    return min(max(TURN_S, nnodes * TURN_OF_A_NODE_S), LONGEST_TURN_S)


# --- repeats --------------------------------------------------------------------------------------

#: Maximum number of repeats in one run. Each has a line in the recording, which all nodes receive: with this many it is
#: some MB.
MOST_REPEATS = 10_000
#: One day: a longer soak would be idle most of its time, because MOST_REPEATS are spread over it.
LONGEST_SOAK_S = 86_400.0
#: No repeat takes longer, even if it hangs and ranks share cores.
_LONGEST_REPEAT_S = 120.0


def longest_s(options: Options) -> float:
    """Return how long a run may continue after check-in: its budget, plus the time for --repeat and --soak."""
    if not options.repeats_all:
        return options.budget_s
    soak_s = options.repeat * _LONGEST_REPEAT_S if options.soak_s is None else options.soak_s + _LONGEST_REPEAT_S
    return options.budget_s + soak_s
