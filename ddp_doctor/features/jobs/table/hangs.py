"""Causes of a job without progress: which rank waits for which, and what the awaited rank does.

DDJ195 to DDJ199 are found in dumps of torch's flight recorder (causes/wait_graph.py), DDJ301 and up by attach
(causes/live.py).
"""

from ddp_doctor.features.jobs.table.kinds import JobCause, code_cause, sick_gpu, sick_host, sick_network
from ddp_doctor.features.jobs.table.remedies import in_code, on_node, remedy

_PROC = ("proc(5), /proc/PID/stat and /proc/PID/status",)
_STACKS = ("py-spy 0.4, dump --nonblocking", "torch 2.13 torch/distributed/distributed_c10d.py")

CAUSES = {
    "DDJ195": JobCause(
        name="stuck-outside-collective",
        title="{who} never entered {call}[: {stands}]",
        domain="code",
        finds="Ranks wait in a collective that another rank of the group has not called, and that rank waits in no"
        " collective at all, by the dumps of torch's flight recorder, or by the stacks of ranks that run.",
        why="The rank is stuck in its own code: data loading, validation, a checkpoint, a lock, or the handling of"
        " an exception. The waiting ranks print the timeout and are victims.",
        remedies=(
            in_code("Find what that rank waits for, such as data or a lock, and set a timeout for such waits"),
            in_code("Call the collective on all ranks or on none, if a condition on the rank skips it"),
        ),
        next_check="py-spy dump --pid PID of that rank while it hangs",
        references=("torch 2.13 torch/include/torch/csrc/distributed/c10d/FlightRecorder.hpp",),
    ),
    "DDJ212": sick_gpu(
        name="gpu-stuck",
        title="The GPU of {who} does not complete {call}, which other ranks completed",
        finds="According to the flight-recorder dumps, a rank called a collective but did not complete it,"
        " although other members of the group did.",
        why="The rank took part, because otherwise the others could not have completed the collective. Its GPU,"
        " driver or link has stopped since, and all later work of the rank waits for it.",
        remedies=(on_node("Check the GPU of that rank for faults before the next job", "dmesg | grep Xid"),),
        next_check="on that rank's host: dmesg | grep Xid; ddp-doctor run",
        references=("torch 2.15 c10d/FlightRecorder.hpp, ProcessGroupNCCL.cpp (last_completed_collective)",),
    ),
    "DDJ196": code_cause(
        name="cross-group-deadlock",
        title="Ranks wait for each other in different process groups[, or {otherwise}][: {odd} used a different order]",
        finds="Ranks wait in collectives of several process groups, each for ranks that wait in another group, by the"
        " dumps of torch's flight recorder.",
        why="A collective ends when all members of its group have entered it. If ranks use two groups in different"
        " orders, they wait for each other forever.",
        remedies=(in_code("Call the groups' collectives in one order on every rank, from one thread"),),
        next_check="run with TORCH_FR_BUFFER_SIZE=20000, and compare the order of groups in each rank's dump",
        references=("torch 2.13 docs, torch.distributed.new_group: using multiple process groups",),
    ),
    "DDJ197": JobCause(
        name="rank-unreachable",
        title="{who} left no readable flight-recorder dump, and other ranks wait for it",
        finds="Ranks wait for a rank whose flight-recorder dump is missing, empty or truncated, while the other"
        " ranks left theirs.",
        why="A rank does not write a dump if it was killed, if its host is down, or while it is being torn down. A"
        " missing dump proves nothing: check the rank's output and its host's kernel log.",
        remedies=(remedy("Read the output and the kernel log of that rank's host first", "dmesg -T"),),
        next_check="dmesg -T on that rank's host, and the scheduler's record of the job",
        references=("torch issue 196968: a rank in teardown writes no dump",),
    ),
    "DDJ199": JobCause(
        name="collective-stalled",
        title="{who} [entered {call} and] did not leave it",
        finds="All ranks that left flight-recorder dumps wait in the same collective.",
        why="No rank is late, so the ranks' code is not to blame: data does not arrive over a link, or a GPU does"
        " not finish.",
        remedies=(remedy("Test the links and GPUs of these hosts without the job", "ddp-doctor run --hosts HOSTS"),),
        next_check="ddp-doctor run on the same hosts, and NCCL_DEBUG=INFO in the job",
        references=("torch 2.13 torch/include/torch/csrc/distributed/c10d/FlightRecorder.hpp",),
    ),
    "DDJ301": JobCause(
        name="rank-stopped",
        title="{who} {is} {how}, and the job waits for it",
        domain="host",
        restart="on the same nodes",
        finds="A rank of a running job is stopped: by SIGSTOP or Ctrl-Z, by a debugger, or with its control group.",
        why="It does not run until it is resumed. Every collective waits for it until the job's timeout.",
        remedies=(on_node("Continue it, or find out what stopped it", "kill -CONT PID"),),
        next_check="grep -E 'State|TracerPid' /proc/PID/status on its host",
        references=_PROC,
    ),
    "DDJ302": JobCause(
        name="rank-gone",
        title="{who} {is} gone[, {how}][, and {others} still there]",
        finds="A job has fewer ranks on a host than its launcher started, while the others wait.",
        why="A rank that has ended no longer takes part in collectives. If the other ranks do not notice the"
        " closed connection, they wait until their timeout.",
        remedies=(remedy("Read its own output and the host's kernel log, then end the job", "dmesg -T"),),
        next_check="dmesg -T on its host, and ddp-doctor logs with the job's output",
        references=_PROC,
    ),
    "DDJ303": JobCause(
        name="data-loader-stuck",
        title="{who} {waits} for data that does not arrive[: its data loader worker is stuck at {line}]",
        domain="data",
        finds="A rank waits for its data loader, whose workers do nothing.",
        why="A worker waits for a lock, a file system or a service, or was forked while a thread held a lock. The"
        " other ranks wait for this rank in a collective.",
        remedies=(
            in_code("Inspect the worker's line for a lock, a read or a request without a timeout"),
            in_code(
                "Set timeout= in the DataLoader, so that it raises an error, and"
                " multiprocessing_context='spawn' if the job has threads before the workers"
                " start"
            ),
        ),
        next_check="py-spy dump --pid of the worker; a short run with num_workers=0",
        references=("torch 2.13 torch/utils/data/dataloader.py, _try_get_data",),
    ),
    "DDJ304": sick_host(
        name="rank-in-kernel",
        title="{who} {hangs} in the kernel[, in {channel}]: storage or a driver does not respond",
        finds="A rank is in uninterruptible sleep (state D) in every sample and does not read or write anything.",
        why="The kernel waits for a device or a file server. Until that answers, not even SIGKILL ends the process.",
        remedies=(
            on_node(
                "Check the host's kernel log for file systems, disks and GPUs",
                "dmesg -T",
                "cat /proc/PID/stack   # as root",
            ),
        ),
        next_check="sudo cat /proc/PID/stack on its host",
        references=_PROC,
    ),
    "DDJ305": sick_network(
        name="data-not-acknowledged",
        title="The network loses data of {who} to {peer}: no acknowledgment",
        finds="All ranks are in one collective, and a rank keeps retransmitting the same data over a TCP connection.",
        why="Packets are lost because of a firewall, a wrong MTU, a cable or a switch. The kernel retransmits at"
        " growing intervals for about 15 minutes and reports nothing before the timeout.",
        remedies=(
            remedy(
                "Test the path between the two hosts, including large packets",
                "ping -M do -s 1472 PEER",
                "ddp-doctor run --only connectivity,interfaces",
                scope="cluster",
            ),
        ),
        next_check="ss -tino dst PEER on its host shows retrans and backoff",
        references=(
            "linux net/ipv4/tcp_ipv4.c, the columns tx_queue and retrnsmt of /proc/net/tcp",
            "tcp(7), tcp_retries2",
        ),
    ),
    "DDJ306": JobCause(
        name="others-wait-for-work",
        title="{who} {does}[ at {line}][ in {looks} samples][ (its data loader worker is at"
        " {worker})], and {others} for it",
        domain="code",
        finds="The other ranks wait in a collective for a rank that compiles, saves a checkpoint, evaluates or"
        " loads data; or the job makes progress, but one rank comes last in at least three of four samples.",
        why="The job makes progress. The GPUs of the other ranks are idle, and a collective times out if the work"
        " takes longer than the timeout of its group.",
        remedies=(
            in_code("Share the work among the ranks, or do it less often"),
            in_code("Set a timeout longer than the work: init_process_group(timeout=timedelta(hours=1))"),
        ),
        next_check="run ddp-doctor attach again in a minute to see whether it moved",
        references=_STACKS,
    ),
    "DDJ307": JobCause(
        name="progress-not-known",
        title="{what}",
        finds="The information that could be read about a running job does not show whether it makes progress.",
        why="For a few seconds, a long computation and an endless loop look the same, and without stacks many"
        " states do.",
        remedies=(
            remedy("Run attach again in a minute, as root or with the setting for stacks that the report names"),
        ),
        next_check="run ddp-doctor attach again in a minute, on every host of the job",
        references=_STACKS,
    ),
    "DDJ309": JobCause(
        name="waits-for-nodes",
        title="{who} {waits} for {what}[ at {endpoint}][: {why}]",
        finds="Launchers or ranks of a job on this host wait for other nodes, and the job has not started.",
        why="A job starts when all its nodes are connected to one endpoint. The other nodes wait for 10 minutes"
        " (torchrun with c10d) or longer.",
        remedies=(remedy("Start the job on the missing nodes, with the same endpoint on all nodes", scope="cluster"),),
        next_check="run ddp-doctor attach on the other nodes of the job",
        references=(
            "torch 2.13 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, RendezvousTimeout",
            "torch 2.13 torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py",
        ),
    ),
    "DDJ308": JobCause(
        name="job-ended",
        title="The job {job} ended during the observation; its exit code is not visible",
        finds="All ranks of a job on this host ended while attach observed them, and the kernel no longer showed how.",
        why="Only the process that started the ranks learns their exit codes. The job may have finished or failed.",
        remedies=(remedy("Read how the job ended in its output", "ddp-doctor logs FILE"),),
        next_check="ddp-doctor logs with the job's output",
        references=_PROC,
    ),
}
