"""DD723, DD727: DDP raises in a mode, or a mode could not be tested."""

from collections import defaultdict
from collections.abc import Iterator

from ddp_doctor.checks.ddp.gradient_modes.blame import modes
from ddp_doctor.checks.ddp.gradient_modes.words import MODES, without
from ddp_doctor.facts.ddp.gradients import GradientModes
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.stock_ddp import remedies
from ddp_doctor.wording.findings import NOBODY, likely
from ddp_doctor.wording.ranks import capital, cause, rank_culprits, ranks_at


@rule("DD723", "ddp-fails-in-a-mode", Severity.ERROR, GradientModes)
def ddp_fails_in_a_mode(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        DDP raises in a mode that it documents, with a model that it supports.

    Why it matters
        A job with this switch ends at its first steps.

    Remedy
        Do without the switch; look for code that replaces parts of torch.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for name, words in MODES.items():
        failed = {rank: mode.error for rank, mode in modes(recording, name) if mode.error}
        if not failed:
            continue
        everyone = len(failed) == recording.facts(GradientModes)[0].fact.world_size
        first, who = failed[min(failed)], ranks_at(recording, failed)
        yield likely(
            () if everyone else rank_culprits(recording, GradientModes, sorted(failed)),
            capital(f"with {words.switch} DDP raises on {who}: {cause(first)}"),
            Evidence(text=f"rank {min(failed)}: {first}"),
            without(name),
            *remedies(recording.world.backend if recording.world else "", "gradient_modes"),
        )


@rule("DD727", "modes-not-tested", Severity.INFO, GradientModes)
def modes_not_tested(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        Modes of DDP that could not be tested here, and why: a torch without the hook, a backend that does
        not reduce the dtype, no numpy for PowerSGD. What torch refuses to every job on such ranks is not
        listed, such as bf16_compress_hook on CPUs.

    Why it matters
        What was not tested is not known to be right.

    Remedy
        None, unless a job of yours uses the mode.

    References
        https://pytorch.org/docs/stable/ddp_comm_hooks.html
    """
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, words in MODES.items():
        seen = (mode for _, mode in modes(recording, name) if not mode.refused)
        for reason in {mode.not_looked for mode in seen if mode.not_looked}:
            reasons[reason].append(words.switch)
    for reason, switches in reasons.items():
        yield likely(NOBODY, f"Not tested: {', '.join(switches)}", Evidence(text=reason))
