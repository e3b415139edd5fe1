"""The order of reasoning over what is left of a failed job; pure.

The kernel's word counts before a rank's own exception, that before the wait graph of flight-recorder dumps, then
RAS, NCCL's warnings and the watchdog. Of one tier, the earliest error over all ranks comes first. Lines of victims
and advice name nobody.
"""

from collections.abc import Iterator

from ddp_doctor.engine.causes.judged import Judged
from ddp_doctor.facts.job_log import JobLogFact, SignSeen
from ddp_doctor.knowledge.job_causes import SIGNS
from ddp_doctor.knowledge.job_causes.kinds import JobCause
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.recording import Recording, once_a_recording


@once_a_recording
def causes(recording: Recording) -> tuple[Judged, ...]:
    """What made the job fail, in the order of time; () where nothing shows a cause."""
    return tuple(judged for at in recording.facts(JobLogFact) for judged in _by_signs(at.fact))


def _by_signs(fact: JobLogFact) -> Iterator[Judged]:
    seen: dict[str, list[SignSeen]] = {}
    causes_by_name: dict[str, JobCause] = {}
    for sign in fact.signs:
        known, cause = SIGNS[sign.sign]
        if cause is not None and known.role == "cause":
            causes_by_name[cause.name] = cause
            seen.setdefault(cause.name, []).append(sign)
    for name, signs in seen.items():
        confidence = min((SIGNS[sign.sign][0].confidence for sign in signs), key=list(Confidence).index)
        hosts = sorted({sign.host for sign in signs if sign.host})
        yield Judged(
            causes_by_name[name],
            confidence,
            tuple(sign.where for sign in signs),
            who=", ".join(hosts) or "the host",
        )
