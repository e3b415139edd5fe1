"""How long the doctor waits, in seconds.

CHECK_S and FIRST_NCCL_S are the contract's default deadlines (docs/explanation/hangs.md); the
others keep a hang's report within the check's deadline plus 3 s, as the test-suite measures.
"""

from ddp_doctor.model.recording import Options

#: A rank check, from the moment its first rank entered it.
CHECK_S = 10.0
#: From init_process_group to the end of the first NCCL collective. The ranks are given their device, so they connect
#: inside init_process_group; the first collective loads kernels and may connect the GPUs one by one.
FIRST_NCCL_S = 60.0
#: The user's own model: its import, its construction and nine forwards. A pass that would not end in time is not begun.
USER_MODEL_S = 60.0
#: An estimate of a model's memory: 20 s of processor time for 7 billion parameters, on a machine that may be busy.
FIT_S = 120.0
#: A step of a model under one strategy. The check itself stops after its time; STILL_S detects a hang.
FIT_STEPS_S = 120.0
#: … and where no rank does anything for this long, it is judged at once (ranks/idle_ranks.py): no rank computes,
#: compiles, reads or writes, so nothing more will come. A hang is to be named within 20 s.
STILL_S = 15.0
#: Between two tests for that.
LOOK_S = 1.0
#: Processor time below which a rank is still: waiting ranks used 0.00 to 0.01 s in 5 s, a library's polling
#: threads use a hundredth of a core (judgment).
STILL_CPU_S_PER_S = 0.03
#: From the fork of the workers, or of the control store, until each has reported in.
WORKER_START_S = 15.0
#: Import of torch in the forkserver; a cold one from a shared file system takes tens of seconds.
IMPORT_S = 60.0
#: A check in which something moved in the last second gets this share of its deadline once more.
EXTENSION = 0.5
#: Time that a process waits for a processor does not count toward a limit. These are the maximum extensions: as a
#: multiple of the limit, and in seconds for the deadline of a check (judgment).
MOST_QUEUED = 3.0
MOST_QUEUED_S = 30.0
#: A rank that wanted a processor for at least LOOK_S and had one for less than this share of that time may still
#: arrive. In a check of CHECK_S, a rank that had a larger share has run for a second (judgment).
STARVED_SHARE = 0.025
#: After a rank died or raised: time for its peers' errors to arrive.
ECHO_GRACE_S = 0.7
#: … and for those that stand in no step to come, or to end for the same reason: where all cores are busy, ranks that
#: import and build one model are seconds apart.
ON_ITS_WAY_S = 5.0
#: For the workers' second threads to answer; one second is long for a process that still runs.
STACK_DUMP_S = 0.8
#: Between two samples of a flight recorder whose finished entries are retired by a watchdog that wakes once a second
#: (nccl2: torch 2.15 c10d/hooks/FlightRecorderHook.hpp).
RECORDER_LAG_S = 2.0
#: From SIGTERM to SIGKILL of workers that are done; NCCL frees its memory meanwhile.
DISMISS_S = 1.0
#: From SIGKILL until a process is given up as uninterruptible, or MOST_QUEUED_S if it still runs.
KILL_S = 1.0
#: A gap in the agent's own clock that means it was stopped, not that its workers hang.
AGENT_PAUSE_S = 1.0
#: A process of the doctor's own that is seen stopped for so long is lost. Ctrl-Z stops the agent with it, and a
#: debugger that only looks lets it go on at once.
HELPER_STOPPED_S = 2.0
#: The least that one pair of ranks gets in the p2p check.
PAIR_S = 5.0
#: Ranks that share a core are slower without a fault: deadlines grow with ranks per core beyond this.
RANKS_PER_CORE = 4.0
#: A step that one rank enters this long after the median rank is worth recording.
LATE_ENTRY_S = 1.0
#: … and worth a warning. The worst delay of 2 to 8 healthy ranks was 0.12 s with both cores of the test
#: machine kept busy (docs/explanation/hangs.md); machines may be much busier.
LATE_RANK_S = 2.0

# --- many nodes -----------------------------------------------------------------------------------

#: Between two beats of an agent, which shows the other agents that it lives.
BEAT_S = 0.1
#: Between two rounds of the process that talks to the control store, on a few nodes …
TURN_S = 0.02
#: … and on many: so much more for each node, up to this. One thread serves the store and needs 15 us for each
#: of some four requests a round (measured, torch 2.13), which makes a fourth of a core for 80 to 2,000 nodes.
TURN_OF_A_NODE_S = 0.00025
LONGEST_TURN_S = 0.5
#: Without a new beat for this long a node is suspected. The worst gap of 4 healthy agents was 0.17 s, on
#: two cores that torchrun's start kept busy (docs/explanation/many-nodes.md).
SILENT_S = 6.0
#: For the other nodes to say whether the suspect answers them.
CONFIRM_S = 2.5
#: A name that does not resolve for this long will not.
UNRESOLVED_S = 6.0
#: Connection attempts that only time out, or find no route, for this long: a late start does not look like this, a
#: firewall does. A refused one means a host that is up, and is worth waiting for.
UNREACHABLE_S = 12.0
#: One connection attempt.
CONNECT_S = 4.0
#: A server that accepted a connection and says nothing for this long is not the control store.
MUTE_S = 6.0
#: For every node to hand in what it read of a trial, beyond the time its own agent needs.
HAND_IN_S = 8.0
#: For every node that is heard to take the report, before the head takes the store away. A node without
#: it says that the head is lost: it is worth more than a silent node's time (SILENT_S).
FAREWELL_S = 8.0


def turn_s(nnodes: int) -> float:
    """Between two rounds with the control store of a run on so many nodes."""
    return min(max(TURN_S, nnodes * TURN_OF_A_NODE_S), LONGEST_TURN_S)


# --- repeats --------------------------------------------------------------------------------------

#: The most repeats of one run. Each has a line in the recording, which all nodes are given: with so many it is some MB.
MOST_REPEATS = 10_000
#: A day: a longer soak would rest most of its time, for MOST_REPEATS are spread over it.
LONGEST_SOAK_S = 86_400.0
#: No repeat takes longer, even where it hangs and ranks share cores.
_LONGEST_REPEAT_S = 120.0


def longest_s(options: Options) -> float:
    """For how long a run whose nodes have met may go on: its budget, and what --repeat and --soak ask for besides."""
    if not options.repeats_all:
        return options.budget_s
    soak_s = options.repeat * _LONGEST_REPEAT_S if options.soak_s is None else options.soak_s + _LONGEST_REPEAT_S
    return options.budget_s + soak_s
