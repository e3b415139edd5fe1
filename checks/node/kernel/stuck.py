"""DD337, DD341: processes stuck in the driver, and a kernel log that cannot be read."""

from collections.abc import Iterator

from ddp_doctor.facts.node.kernel import KernelFact, StuckProcess
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.gpus import REBOOT
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.kernel_log import NodeView, blocked_s, views
from ddp_doctor.wording.findings import finding, proved
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.kernel_log import LINES_OF_EVIDENCE, stuck_evidence
from ddp_doctor.wording.nodes import by_cause, host, name_list, of_nodes


@rule("DD337", "process-stuck-in-gpu-driver", Severity.WARNING, KernelFact)
def stuck(recording: Recording) -> Iterator[Draft]:
    """A process is stuck in the NVIDIA driver, and cannot be killed.

    What it finds
        Processes in state D (uninterruptible) that wait in a function of the driver and did not run at all
        while they were watched for three seconds. An error where the kernel has called them hung (blocked for
        more than 120 seconds); information where the function cannot be read. Where NVML does not answer
        either, DD302 names them.

    Why it matters
        Its GPU memory is never freed, and whoever needs the same lock of the driver hangs with it: nvidia-smi,
        and every new rank.

    Remedy
        Reboot the node; no signal ends such a process.

    References
        https://docs.kernel.org/filesystems/proc.html
    """
    for view in views(recording):
        groups: dict[Severity, list[StuckProcess]] = {}
        for one in () if _hangs(view) else view.fact.stuck:
            groups.setdefault(_severity(view, one), []).append(one)
        for severity, processes in groups.items():
            where = host(recording, view.node)
            names = name_list([f"{process.name} (pid {process.pid})" for process in processes])
            are = "is" if len(processes) == 1 else "are"
            yield finding(
                (Culprit(kind="node", node=where, node_rank=view.node),),
                f"{names} on {where} {are} stuck in the NVIDIA driver (state D)",
                (stuck_evidence(view, process) for process in processes[:LINES_OF_EVIDENCE]),
                REBOOT,
                confidence=Confidence.POSSIBLE if severity is Severity.INFO else Confidence.LIKELY,
                detail="No signal ends such a process; what needs the same lock of the driver hangs with it.",
                severity=asked_for(recording, severity),
            )


def _hangs(view: NodeView) -> bool:
    error = view.gpus.nvml_error if view.gpus else None
    return error is not None and error.code == "timed_out"


def _severity(view: NodeView, process: StuckProcess) -> Severity:
    if blocked_s(view, process):
        return Severity.ERROR
    return Severity.WARNING if process.wait_channel else Severity.INFO


@rule("DD341", "kernel-log-not-readable", Severity.INFO, KernelFact)
def log_not_readable(recording: Recording) -> Iterator[Draft]:
    """The kernel log cannot be read here, so nothing is known of Xids.

    What it finds
        GPUs that the NVIDIA driver serves, while dmesg, the journal and the files of syslog are all refused or
        missing, as for ordinary users where kernel.dmesg_restrict is 1, and in most containers.

    Why it matters
        Xids, PCIe errors and hung tasks stand nowhere else. What follows from them may still be found.

    Remedy
        Run ddp-doctor prolog as root on the node, or read the log as an administrator.

    References
        https://docs.kernel.org/admin-guide/sysctl/kernel.html#dmesg-restrict
    """
    for reason, group in by_cause(recording.facts(KernelFact), _unread).items():
        yield proved(
            of_nodes(recording, group),
            "The kernel log of {who} cannot be read, so nothing is known of Xids",
            Evidence(text=reason),
            by_operator(
                "Look as root, or as a member of the groups adm or systemd-journal.",
                "sudo dmesg -T | grep -i -e xid -e nvrm",
                undo=NOTHING_TO_UNDO,
            ),
        )


def _unread(fact: KernelFact) -> str | None:
    served = any(gpu.driver == "nvidia" for gpu in fact.gpus)
    return fact.log_problem if served else None
