"""The reason why a job has not begun: its launchers or ranks wait for other nodes at an endpoint. Pure."""

from ddp_doctor.features.jobs.causes.judged import Judged
from ddp_doctor.features.jobs.facts import LogLine, Meeting
from ddp_doctor.features.jobs.table import cause_named
from ddp_doctor.features.jobs.table.remedies import remedy
from ddp_doctor.features.jobs.text import names, verb
from ddp_doctor.features.jobs.views.live import LiveJob
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Remedy
from ddp_doctor.wording.ranks import rank_list

#: Nodes of one job usually start within this time of each other (judgment).
_STARTS_WITHIN_S = 30.0
_LOCAL = ("localhost", "127.", "[::1]", "::1")
#: The options that set the endpoint.
_OPTIONS = {
    "torchrun": "--rdzv-endpoint or --master-addr and --master-port",
    "accelerate": "--main_process_ip and --main_process_port",
    "ranks": "MASTER_ADDR and MASTER_PORT",
}
#: For a launcher that waits for a program that it has started.
_OF_PROGRAM = remedy("Run this program by hand, and check that its host is up and lets you log in", scope="cluster")
#: For a launcher that has started nothing on this host.
_ELSEWHERE = remedy("Run attach on the nodes on which the ranks should run", scope="cluster")
_OF_SLURM = remedy("Find out whether SLURM has started the tasks, and run attach on their nodes", "squeue --me")


def judged(job: LiveJob, meeting: Meeting) -> Judged | None:
    """Return what a job that has not begun waits for, or None if its own ranks on this host hold it up."""
    fault = _fault(meeting)
    others = _others(job, meeting)
    if meeting.waits and not fault and not others:
        return None
    is_late = meeting.waited_s >= _STARTS_WITHIN_S
    processes = [rank.fact.pid for rank in job.ranks]
    who = names(job.ranks) if meeting.who == "ranks" else f"{meeting.who} (pid {', '.join(map(str, processes))})"
    if meeting.node is not None and meeting.expected:
        who += f", node {meeting.node} of {meeting.expected},"
    if not meeting.waits:
        what = {"what": f"{who.rstrip(',')} has no ranks at this moment: it starts or has ended them"}
        return Judged(cause_named("progress-not-known"), Confidence.POSSIBLE, (), values=what)
    state = fault or _who_came(meeting)
    place = f"{who.rstrip(',')} on {job.hosts[0].host}"
    text = f"started {meeting.waited_s:.0f} s ago"
    return Judged(
        cause_named("waits-for-nodes"),
        Confidence.LIKELY if fault and is_late else Confidence.POSSIBLE,
        (LogLine(file=place, line=0, text=text),),
        who=who,
        detail=_detail(meeting),
        values={
            "waits": verb(job.ranks, "wait"),
            "what": others or "the other nodes",
            "endpoint": meeting.endpoint,
            "why": state,
        },
        remedies=_remedies(meeting),
    )


def _others(job: LiveJob, meeting: Meeting) -> str:
    if meeting.program is not None:
        return meeting.program or "its tasks"
    if meeting.who == "ranks":
        return rank_list(job.unseen) if job.unseen else "other ranks" if job.is_elsewhere else ""
    left = (meeting.expected or 2) - (meeting.came or len(job.ranks))
    if left <= 0:
        return ""
    return "another node" if left == 1 else f"{left} other nodes"


def _fault(meeting: Meeting) -> str:
    if meeting.server:
        return f"{meeting.server} has this port, and it does not belong to the job"
    return {
        "refused": "the port is closed",
        "silent": "a connection gets no answer" if meeting.program else "no answer to a connection",
        "unresolved": "the host name does not resolve",
        "open": "the port is open, but the job is not connected to it",
    }.get(meeting.answer, "")


def _who_came(meeting: Meeting) -> str:
    if meeting.program == "":
        return "no rank runs on this host"
    if meeting.answer != "served" or meeting.came is None or meeting.who == "ranks" or not meeting.expected:
        return ""
    return f"{meeting.came} of {meeting.expected} nodes {'has' if meeting.came == 1 else 'have'} come"


def _is_local(meeting: Meeting) -> bool:
    return meeting.endpoint.startswith(_LOCAL)


def _detail(meeting: Meeting) -> str:
    return "Each node reaches only itself at this address." if _is_local(meeting) else ""


def _remedies(meeting: Meeting) -> tuple[Remedy, ...]:
    if meeting.program is not None:
        return (_OF_PROGRAM if meeting.program else _OF_SLURM if meeting.who == "srun" else _ELSEWHERE,)
    option = _OPTIONS.get(meeting.who, "the endpoint")
    texts = {
        "refused": f"Start the job on the first node, or correct the address and port ({option})",
        "silent": "Allow TCP connections to this port in the firewall, or correct the address",
        "unresolved": f"Use the IP address of the first node instead of its name ({option})",
        "open": "Check which program listens on this port, and that all nodes belong to one job",
    }
    first = texts.get(meeting.answer, "Start the job on the missing nodes, with the same endpoint on all nodes")
    if meeting.server:
        first = f"Choose a free port ({option}), the same on all nodes"
    own = f"Use the address of the first node instead of {meeting.endpoint.rpartition(':')[0]} ({option})"
    return tuple(remedy(text, scope="cluster") for text in (first, *[own] * _is_local(meeting)))
