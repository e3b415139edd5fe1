"""Rules for trouble in the output that did not end the job; they report information only."""

from collections.abc import Iterator

from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.features.jobs.facts import JobLogFact
from ddp_doctor.knowledge.gpu.xids import NVLINK5
from ddp_doctor.knowledge.versions import dotted, nccl_issues, release
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, finding
from ddp_doctor.wording.nodes import name_list


@rule("DDJ205", "loss-stays-nan", Consequence.RISK, JobLogFact)
def loss_stays_nan(recording: Recording) -> Iterator[Draft]:
    """Finds: A job whose last losses, three or more, are all NaN or infinite.
    Why: Training continues, but the model no longer learns.
    Remedy: Restart from a checkpoint with finite losses, with a lower learning rate or in bfloat16.
    See: https://pytorch.org/docs/stable/notes/numerical_accuracy.html
    """
    job = recording.first(JobLogFact)
    for file in job.files if job else ():
        if file.nan_since is not None:
            lines = file.lines - file.nan_since.line + 1
            yield finding(
                NOBODY,
                f"Every loss in the last {lines} lines of {file.name} is NaN or infinite",
                Evidence(check="logs", text=f"{file.name}:{file.nan_since.line}: {file.nan_since.text}"),
                remedy(
                    "Restart from a checkpoint with finite losses, with a lower learning rate or in bfloat16",
                    scope="code",
                ),
                confidence=Confidence.PROVED,
                severity=Severity.INFO,
            )


@rule("DDJ206", "nvlink-errors-corrected", Consequence.RISK, JobLogFact)
def nvlink_errors_corrected(recording: Recording) -> Iterator[Draft]:
    """Finds: Non-fatal NVLink errors of a GPU or NVSwitch in the kernel log (Xid 144 to 150, SXid).
    Why: The link recovered, and the job continues. Many such errors, or errors just before a failure, point to it.
    Remedy: Compare its error counters with the counters of other links.
    See: NVIDIA Xid catalog, https://docs.nvidia.com/deploy/xid-errors/
    """
    job = recording.first(JobLogFact)
    signs = [
        sign
        for sign in (job.signs if job else ())
        if sign.sign == "nvlink-not-fatal" and (sign.values["kind"] == "SXid" or int(sign.values["xid"]) in NVLINK5)
    ]
    for (host, bus), of_device in grouped(((sign.host, sign.values["bus"]), sign) for sign in signs).items():
        count = sum(sign.times for sign in of_device)
        codes = name_list(sorted({f"{sign.values['kind']} {sign.values['xid']}" for sign in of_device}))
        on = f" on {host}" if host else ""
        yield finding(
            (Culprit(kind="gpu", node=host, name=bus),),
            f"NVLink of {bus}{on} reports {count} non-fatal error{'s' if count > 1 else ''} ({codes})",
            (
                Evidence(check="logs", text=f"{sign.where.file}:{sign.where.line}: {sign.where.text}")
                for sign in of_device[:LINES_OF_EVIDENCE]
            ),
            remedy("Compare the error counters of this link with the counters of other links", "nvidia-smi nvlink -e"),
            confidence=Confidence.PROVED,
            severity=Severity.INFO,
        )


@rule("DDJ207", "known-bug-of-nccl", Consequence.RISK, JobLogFact, NcclTransportFact)
def known_bug_of_nccl(recording: Recording) -> Iterator[Draft]:
    """Finds: A job without a good end whose output shows a release of NCCL with a known bug that hangs such jobs.
    Why: A hang or wrong data may come from the library and not from the job, but not every job triggers the bug.
    Remedy: Use a torch that bundles a fixed NCCL; some bugs are avoided by a setting.
    See: https://docs.nvidia.com/deeplearning/nccl/release-notes
    """
    job, logs = recording.first(JobLogFact), recording.facts(NcclTransportFact)
    if job is None or any(file.is_finished for file in job.files):
        return
    hosts = {log.fact.host for log in logs} | {rank.host for rank in job.ranks}
    torch = release(job.torch_version or "")
    for version in sorted({log.fact.version for log in logs if log.fact.version}):
        for issue in nccl_issues(release(version), torch, "", len(hosts - {None})):
            if issue.torch_before is None or torch:
                setting = ("export " + "=".join(issue.setting),) if issue.setting else ()
                yield finding(
                    NOBODY,
                    f"NCCL {version} {issue.effect}",
                    Evidence(check="logs", text=f"NCCL {version} in the output", expected_from=issue.source),
                    remedy(
                        f"Use NCCL {dotted(issue.before)} or newer{', or set a variable' if setting else ''}",
                        *setting,
                        scope="job",
                    ),
                    detail="A known bug. The output does not show whether it is the cause.",
                    confidence=Confidence.POSSIBLE,
                    severity=Severity.INFO,
                )
