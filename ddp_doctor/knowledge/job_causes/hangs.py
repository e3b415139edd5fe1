"""Causes that the dumps of torch's flight recorder show: who waits for whom (engine/causes/wait_graph.py)."""

from ddp_doctor.knowledge.job_causes.kinds import JobCause, code_cause, in_code, remedy

CAUSES = {
    "DDJ195": JobCause(
        name="stuck-outside-collective",
        title="{who} never entered [{call}, in which other ranks wait][; {stands}]",
        domain="code",
        finds="Ranks wait in a collective that another rank of the group has not called, and that rank waits in no"
        " collective at all, by the dumps of torch's flight recorder, or by the stacks of ranks that run.",
        why="It stands in its own code: data loading, validation, a checkpoint, a lock, or an exception that is being"
        " handled. The ranks that wait print the time-out and are victims.",
        remedies=(
            in_code(
                "End what it waits for there: who writes into that file or pipe, holds that lock, serves that"
                " peer; and give such a wait a time-out"
            ),
            in_code(
                "Where it left the collective out, as below a condition on the rank: let all ranks call it, or none"
            ),
        ),
        next_check="py-spy dump --pid PID of that rank while it hangs",
        references=("torch 2.13 torch/include/torch/csrc/distributed/c10d/FlightRecorder.hpp",),
    ),
    "DDJ196": code_cause(
        name="cross-group-deadlock",
        title="Ranks wait for each other in different process groups[, or {otherwise}]"
        "[: {odd} took them in another order]",
        finds="Ranks wait in collectives of several process groups, each for ranks that wait in another group, by the"
        " dumps of torch's flight recorder.",
        why="A collective ends when all members of its group have entered it. Where ranks take two groups in different"
        " orders, each waits for the other for ever.",
        remedies=(in_code("Call the collectives of the groups in one order on every rank, and from one thread"),),
        next_check="TORCH_FR_BUFFER_SIZE=20000, and compare the order of groups in each rank's dump",
        references=("torch 2.13 docs, torch.distributed.new_group: using multiple process groups",),
    ),
    "DDJ197": JobCause(
        name="rank-unreachable",
        title="{who} left no flight-recorder dump that can be read, and the other ranks wait for it",
        finds="Ranks wait for a rank of which there is no dump of torch's flight recorder, or an empty or cut-off"
        " one, while the other ranks left theirs.",
        why="A rank that was killed, whose host is gone, or that is being torn down writes none. The absence is no"
        " proof: its own output and its host's kernel log decide.",
        remedies=(remedy("Read the output and the kernel log of that rank's host first", "dmesg -T"),),
        next_check="dmesg -T on that rank's host, and the scheduler's record of the job",
        references=("torch issue 196968: a rank in teardown writes no dump",),
    ),
    "DDJ199": JobCause(
        name="collective-stalled",
        title="{who} [entered {call} and] do not get out of it",
        finds="All ranks whose dumps of torch's flight recorder are there wait in the same collective.",
        why="No rank is late, so no rank's code is to blame: data does not arrive over a link, or a GPU does not"
        " finish.",
        remedies=(remedy("Test the links and GPUs of these hosts without the job", "torchrun … ddp-doctor run"),),
        next_check="ddp-doctor run on the same hosts, and NCCL_DEBUG=INFO in the job",
        references=("torch 2.13 torch/include/torch/csrc/distributed/c10d/FlightRecorder.hpp",),
    ),
}
