"""The findings of rules DDT120 to DDT149 (bound, severity, fix), and the texts for times and ranks of all rules."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.views.advice import advice
from ddp_doctor.features.trace.views.parts import Measure, Usual
from ddp_doctor.features.trace.views.windows import Window, windows
from ddp_doctor.knowledge.severity import WARNING_SHARE, of_lost_share
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording, TraceAdvice
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import NOBODY, finding

_TRY_IT = "ddp-doctor run --model MODULE:FACTORY --from-trace REPORT.json"


class Told(NamedTuple):
    """An advice for a window, with a usual step of the window."""

    advice: TraceAdvice
    usual: Usual
    window: Window

    def draft(
        self,
        title: str,
        *evidence: Evidence,
        remedies: tuple[Remedy, ...],
        severity: Severity | None = None,
        warns_from: float = WARNING_SHARE,
    ) -> Draft:
        """Return the finding: an error only if the step becomes three times slower, info if the cost is low."""
        most = self.advice.at_most
        by_bound = Severity.INFO if most < warns_from else of_lost_share(most)
        step = Evidence(text="usual step", value=self.usual.step_us / 1e6, unit="s")
        return finding(
            NOBODY,
            f"{title}{self.window.where} (costs at most {most:.0%} of the step)",
            [*evidence, step],
            *remedies,
            confidence=Confidence.LIKELY if self.window.is_whole else Confidence.POSSIBLE,
            severity=severity or by_bound,
        )

    def time(self, text: str, measure: Measure) -> Evidence:
        """Return the time that each step takes for something, as evidence."""
        each = self.usual.of_ranks(measure)
        differ = f", {ms(min(each))} to {ms(max(each))} between ranks" if max(each) >= 1.05 * min(each) else ""
        return Evidence(text=f"{text}, per step{differ}", value=max(each) / 1e6, unit="s")


def told(recording: Recording, rule: str) -> Iterator[Told]:
    """Yield the advice of a rule for each window."""
    for window in windows(recording):
        for each in advice(recording, window):
            if each.code == rule:
                yield Told(each, Usual(window), window)


def setting(summary: str, *, undo: str, cost: str = "") -> Remedy:
    """Return a fix: a changed argument of DistributedDataParallel, which ``run --from-trace`` can test."""
    untried = "reading a trace runs nothing; the command tests it with your model"
    return remedy(summary, _TRY_IT, scope="code", cost=cost, undo=undo, untried=untried)


#: Make a fix that follows from the trace.
by_trace = partial(remedy, untried="reading a trace runs nothing")
#: Make a fix that is another change of the job's code.
code = partial(by_trace, scope="code", undo="restore the previous lines")


def ms(microseconds: float) -> str:
    """Return ``143 ms``, ``43 ms``, ``4.3 ms`` or ``0.43 ms``."""
    value = microseconds / 1e3
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def rank_of(fact: TraceFact) -> str:
    """Return a rank's name, ``rank 1 (node0, rank1.json.gz)``, with the host if known and without the directory."""
    return f"rank {fact.rank} ({', '.join(filter(None, (fact.host, fact.file.rpartition('/')[2])))})"
