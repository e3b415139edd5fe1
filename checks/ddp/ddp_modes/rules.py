"""DD718, DD723, DD726, DD727, DD730: a mode with a wrong mean, an error, other bits or other steps, or none tested.

DD753, DD759: samplers whose shares overlap or leave samples out, and ranks that the environment seeds alike.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.checks.ddp.ddp_modes.cases import WAYS
from ddp_doctor.facts.ddp.gradients import DdpModes, GradientSync, Mode, OffInMode, ScaledStep
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import CHANGES_TRAINING, in_code, remedy
from ddp_doctor.remedies.torch_calls import DOCS, of_stock_ddp
from ddp_doctor.wording.findings import NOBODY, finding, likely
from ddp_doctor.wording.nodes import first_names, name_list
from ddp_doctor.wording.ranks import capital, cause, rank_culprits, ranks_at

_BACKOFF = 0.5  # torch.amp.GradScaler's default
_WAYS = {way.name: way for way in WAYS}
_AGREE = in_code(
    "All-reduce (MAX) the scaler's found_inf before scaler.step(), as FSDP's ShardedGradScaler does",
    cost="one all-reduce of a single number per step",
    undo="remove the call",
    untried=CHANGES_TRAINING,
    references=("https://pytorch.org/docs/stable/amp.html",),
)


@dataclass(frozen=True)
class _Off:
    rank: int
    mode: str
    off: OffInMode

    @property
    def holds(self) -> gradient_code.Reading:
        return self.off.gradient.held


def _modes(recording: Recording) -> dict[str, dict[int, Mode]]:
    """What each rank saw of each mode, in the order of the table; unknown modes of another release are left out."""
    found: dict[str, dict[int, Mode]] = {name: {} for name in _WAYS}
    for rank in recording.facts(DdpModes):
        for mode in rank.fact.modes:
            found.get(mode.name, {})[rank.rank or 0] = mode
    return {name: by_rank for name, by_rank in found.items() if by_rank}


def _off(recording: Recording, *, wrong: bool) -> list[_Off]:
    """The gradients that are wrong, or (``wrong`` is false) only not the same on all ranks."""
    each = ((rank, name, mode) for name, by_rank in _modes(recording).items() for rank, mode in by_rank.items())
    return [_Off(rank, name, off) for rank, name, mode in each for off in mode.off if off.gradient.equal is not wrong]


def _switches(modes: Collection[str]) -> str:
    return name_list([_WAYS[name].switch for name in modes])


def _without(modes: Collection[str]) -> tuple[Remedy, ...]:
    """What to do without these modes; nothing where many are off, for then no switch is the cause."""
    return (in_code(f"Train without {_switches(modes)}", untried=CHANGES_TRAINING),) if len(modes) <= 2 else ()


def _world_size(recording: Recording) -> int:
    return recording.facts(DdpModes)[0].fact.world_size


@rule("DD718", "gradient-of-a-mode-wrong", Consequence.WRONG, DdpModes)
def gradient_of_a_mode_wrong(recording: Recording) -> Iterator[Draft]:
    """Finds: In a mode of DDP (a switch, a communication hook, join(), autocast, half precision) a gradient is not what
        follows from the ranks' known gradients, though that of an ordinary step is. Modes that are off in the same way
        are one finding; a rank whose share is missing is named. A gradient that is not finite where only the sum is
        beyond the format was added before it was divided.
    Why: Nothing tells: the loss still falls. A job with this switch learns from a wrong mean.
    Remedy: Do without the switch. None of your own code runs in this check: with NCCL, repeat it with
        NCCL_PROTO=Simple, and look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/notes/ddp.html
        https://pytorch.org/docs/stable/ddp_comm_hooks.html
    """
    if any(rank.fact.step.off for rank in recording.facts(GradientSync)):
        return  # DD701 and DD702 report it
    of_modes = grouped((found.mode, found) for found in _off(recording, wrong=True)).values()
    causes = grouped((_worst(of_mode).holds.holds, found) for of_mode in of_modes for found in of_mode)
    for off in causes.values():
        worst, ranks = _worst(off), sorted({found.rank for found in off})
        modes = list(dict.fromkeys(found.mode for found in off))
        who, gradient = ranks_at(recording, ranks), worst.off.gradient
        held = gradient_code.words(worst.holds, _world_size(recording)).replace(
            "times the mean", "times what it must be"
        )
        names = sorted({found.off.gradient.parameter for found in off if found.mode == worst.mode})
        where = f"on rank {worst.rank} after step {worst.off.step} in the mode {worst.mode}"
        yield finding(
            rank_culprits(recording, DdpModes, _blamed(recording, off)),
            capital(f"with {_switches(modes)}, the gradient on {who} is wrong: {held}"),
            gradient.evidence(f"gradient of {gradient.parameter} {where}"),
            *_without(modes),
            *of_stock_ddp(recording, "ddp_modes"),
            confidence=Confidence.LIKELY,
            detail=f"Wrong in ddp-doctor's own model: {', '.join(names)}. Your code was not involved.",
        )


def _worst(off: Iterable[_Off]) -> _Off:
    return max(off, key=lambda found: found.off.gradient.max_abs_error or 0.0)


def _blamed(recording: Recording, off: list[_Off]) -> list[int]:
    """The minority with a wrong gradient, else the ranks whose share all gradients lack; none where it is unsure."""
    ranks, holds = sorted({found.rank for found in off}), [found.holds for found in off]
    if len(ranks) < _world_size(recording) and not any(_WAYS[found.mode].joined for found in off):
        return ranks  # under join() not all ranks take the step
    lacking = {rank for held in holds for rank, share in held.shares.items() if share < 1}
    agree = all(held.holds == "shares" and set(held.shares) == lacking for held in holds)
    return sorted(lacking) if agree else []


@rule("DD723", "ddp-fails-in-a-mode", Consequence.FAILS, DdpModes)
def ddp_fails_in_a_mode(recording: Recording) -> Iterator[Draft]:
    """Finds: DDP raises in a mode that it documents, with a model that it supports.
    Why: A job with this switch ends at its first steps.
    Remedy: Do without the switch; look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for name, by_rank in _modes(recording).items():
        failed = {rank: mode.error for rank, mode in by_rank.items() if mode.error}
        if not failed:
            continue
        everyone = len(failed) == _world_size(recording)
        first, who = failed[min(failed)], ranks_at(recording, failed)
        yield likely(
            () if everyone else rank_culprits(recording, DdpModes, sorted(failed)),
            capital(f"with {_WAYS[name].switch}, DDP fails on {who} with {cause(first).partition('. ')[0]}"),
            Evidence(text=f"rank {min(failed)}: {first}"),
            *_without([name]),
            *of_stock_ddp(recording, "ddp_modes"),
        )


@rule("DD726", "gradients-of-a-mode-differ-between-ranks", Consequence.WRONG, DdpModes)
def gradients_of_a_mode_differ_between_ranks(recording: Recording) -> Iterator[Draft]:
    """Finds: In a mode, all ranks hold the mean within the rounding of its format, but not the same bits.
    Why: DDP never compares parameters again: the replicas drift apart, with a compressing hook fast.
    Remedy: Leave the mode out.
    See: https://github.com/pytorch/pytorch/issues/109191
    """
    wrong = {found.mode for found in _off(recording, wrong=True)}
    differ = grouped((found.mode, found.off.gradient.parameter) for found in _off(recording, wrong=False))
    modes = [name for name in differ if name not in wrong]
    if modes:
        names = sorted({parameter for name in modes for parameter in differ[name]})
        yield likely(
            NOBODY,
            f"With {_switches(modes)}, gradients differ between ranks: replicas drift apart",
            Evidence(
                text="gradients whose bits differ between ranks",
                value=len(names),
                expected=0,
                expected_from="DDP gives all ranks the same reduced bucket",
            ),
            *_without(modes),
            detail=f"They are {name_list(names)} of ddp-doctor's own model. Each is right within rounding.",
        )


@rule("DD727", "modes-not-tested", Consequence.KNOWN, DdpModes)
def modes_not_tested(recording: Recording) -> Iterator[Draft]:
    """Finds: Modes of DDP that could not be tested here, and why: a torch without the hook or GradScaler, a backend
        that does not reduce the dtype, no numpy for PowerSGD. What torch refuses to every job on such ranks is not
        listed, such as bf16_compress_hook on CPUs.
    Why: What was not tested is not known to be right.
    Remedy: None, unless a job of yours uses the mode.
    See: https://pytorch.org/docs/stable/ddp_comm_hooks.html
    """
    reasons = grouped(
        (reason, _WAYS[name].switch)
        for name, by_rank in _modes(recording).items()
        for reason in {mode.not_looked for mode in by_rank.values() if mode.not_looked and not mode.refused}
    )
    for reason, switches in reasons.items():
        yield likely(NOBODY, f"Not tested: {', '.join(switches)}", Evidence(text=reason))


@rule("DD730", "ranks-skip-scaled-steps-apart", Consequence.WRONG, DdpModes)
def ranks_skip_scaled_steps_apart(recording: Recording) -> Iterator[Draft]:
    """Finds: Each rank has a GradScaler, one rank's gradient is infinite in one of three steps, and the ranks do not
        all skip that step and no other: some take it, no rank skips it, or a scale is not halved then.
    Why: The ranks' weights or scales differ from then on, and DDP never compares them again; where no rank skips, the
        weights are infinite or a wrong gradient is learnt from.
    Remedy: Look for a communication hook or code that keeps infinities from the other ranks or replaces them
        (nan_to_num, clamp); let the ranks agree on found_inf before they step.
    See: https://pytorch.org/docs/stable/amp.html
        https://pytorch.org/docs/stable/notes/amp_examples.html
    """
    wrong_modes = {found.mode for found in _off(recording, wrong=True)}
    for name, by_rank in _modes(recording).items():
        scaled = {rank: mode.scaled for rank, mode in by_rank.items() if mode.scaled}
        if name in wrong_modes or len(scaled) < _world_size(recording):
            continue
        wrong = {rank: number for rank, steps in scaled.items() if (number := _first_wrong(steps)) is not None}
        if wrong:
            number = min(wrong.values())
            yield _apart(recording, name, {rank: steps[number] for rank, steps in scaled.items()}, sorted(wrong))
            return


def _first_wrong(steps: tuple[ScaledStep, ...]) -> int | None:
    """The first step that is not skipped for an infinite gradient alone, or whose scale is not that which is due."""
    due = steps[0].scale
    for number, step in enumerate(steps):
        due *= _BACKOFF if step.infinite else 1.0
        if step.stepped is step.infinite or step.scale != due:
            return number
    return None


def _apart(recording: Recording, mode: str, steps: dict[int, ScaledStep], wrong: list[int]) -> Draft:
    by_what: dict[bool, list[int]] = grouped((step.stepped, rank) for rank, step in steps.items())
    infinite, last = next(iter(steps.values())).infinite, max(steps)
    why = f"rank {last}'s gradient is infinite" if infinite else "all gradients are finite"
    if len(by_what) > 1:
        what = (
            f"{ranks_at(recording, by_what[False])} skipped the step, but {ranks_at(recording, by_what[True])} took it"
        )
    elif infinite and by_what.get(True):
        what = "no rank skips the step"
    else:
        what = f"the GradScaler on {ranks_at(recording, wrong)} then has a wrong scale"
    return likely(
        rank_culprits(recording, DdpModes, wrong if len(wrong) * 2 < len(steps) else ()),
        f"{capital(why)}, and {what}",
        (
            Evidence(text=f"scale of rank {rank} after the step, in {mode}", value=steps[rank].scale)
            for rank in wrong[:4]
        ),
        _AGREE,
        *of_stock_ddp(recording, "ddp_modes"),
        detail="The model is ddp-doctor's own. Your code was not involved.",
    )


_NAMED = 8  # indices that a sentence names
#: torch seeds itself with 64 random bits; below this somebody chose (by chance once in four thousand million).
_CHOSEN_BELOW = 2**32
_WHICH_SAMPLER = remedy(
    "Look for code that replaces torch's sampler or generators (sitecustomize, .pth files, a vendor's fork)",
    'python -c "import inspect, torch; from torch.utils.data import DistributedSampler as S; '
    'print(torch.__version__, inspect.getsourcefile(S))"',
    untried="ddp-doctor does not know what replaces it",
    references=(DOCS + "data.html#torch.utils.data.distributed.DistributedSampler",),
)
_SEED_BY_RANK = in_code(
    "Add the rank to the seed of what is to differ between ranks: dropout and augmentations",
    "torch.manual_seed(seed + torch.distributed.get_rank())",
    references=(DOCS + "notes/randomness.html",),
)


def faults(held: Mapping[int, Sequence[int]], length: int, drop_last: bool) -> dict[str, list[int]]:
    """What is wrong with the shares of all ranks, by rank, and the ranks that it shows; empty where all is right.

    Without drop_last a sampler repeats as many indices as make the length a multiple of the ranks; with it, it leaves
    out as many as are over. Either is less than there are ranks, and all shares have one length.
    """
    taken = Counter(index for indices in held.values() for index in indices)
    most = max(len(indices) for indices in held.values())
    again = sorted(index for index, count in taken.items() if count > 1)
    missing = [index for index in range(length) if index not in taken]
    outside = sorted(index for index in taken if not 0 <= index < length)
    found = {}
    if outside:
        found[f"{_samples(outside)} beyond its end"] = [rank for rank in held if {*held[rank]} & {*outside}]
    if short := [rank for rank, indices in held.items() if len(indices) < most]:
        found[f"shares of fewer samples than {most}"] = short if 2 * len(short) < len(held) else []
    if sum(taken.values()) - len(taken) > (0 if drop_last else -length % len(held)):
        found[f"{_samples(again)} more than once"] = []
    if len(missing) > (length % len(held) if drop_last else 0):
        found[f"{_samples(missing)} on no rank"] = []
    return found


def _samples(indices: Sequence[int]) -> str:
    return f"sample{'s' if len(indices) > 1 else ''} {first_names([str(index) for index in indices], _NAMED)}"


@rule("DD753", "shards-overlap-or-leave-out", Consequence.WRONG, DdpModes)
def shards_overlap_or_leave_out(recording: Recording) -> Iterator[Draft]:
    """Finds: The ranks' shards, together, do not hold every index of a data set once, or differ in length. Indices that
        are repeated to make the shares equal (fewer than there are ranks), or left out with ``drop_last``, are right.
    Why: Samples that two ranks have count twice in every gradient, and what no rank has is never learnt from. A rank
        with a shorter share leaves the others waiting at the end of each epoch.
    Remedy: None of your own code runs in this check: look for code that replaces parts of torch. In a job's own code,
        give DistributedSampler the same data set and seed on all ranks, and call ``set_epoch`` on all.
    See: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    facts = {rank.rank or 0: rank.fact for rank in recording.facts(DdpModes)}
    each = [fact.shares for fact in facts.values() if len(facts) == fact.world_size]
    for shares_of_all in zip(*each, strict=False):
        case = shares_of_all[0]
        held = {rank: share.indices for rank, share in zip(facts, shares_of_all, strict=True)}
        if found := faults(held, case.data_length, case.drop_last):
            blamed = sorted({rank for ranks in found.values() for rank in ranks})
            of, during = f"a data set of {case.data_length} samples", f"in epoch {case.epoch}"
            yield likely(
                rank_culprits(recording, DdpModes, blamed),
                f"The ranks' shards do not cover {of} exactly once {during}: {name_list(list(found))}"
                + (f" ({ranks_at(recording, blamed)})" if blamed else ""),
                Evidence(text=f"of {of} {during}: {name_list(list(found))}"),
                _WHICH_SAMPLER,
                detail=f"drop_last was {case.drop_last}. None of your own code took part.",
            )
            return


@rule("DD759", "environment-seeds-all-ranks-alike", Consequence.RISK, DdpModes)
def environment_seeds_all_ranks_alike(recording: Recording) -> Iterator[Draft]:
    """Finds: Before any code of the job ran, torch was seeded with one chosen number on all ranks, where Python runs a
        sitecustomize or usercustomize module at its start.
    Why: With DDP the seeds of ranks need not agree, for it broadcasts rank 0's weights; dropout masks and augmentations
        are then the same on all ranks.
    Remedy: If that is not meant, add the rank to the seed.
    See: https://docs.python.org/3/library/site.html
        https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    facts = [rank.fact for rank in recording.facts(DdpModes)]
    seeds, files = {fact.torch_seed for fact in facts}, sorted({file for fact in facts for file in fact.start_up_files})
    if len(facts) > 1 and len(seeds) == 1 and 0 <= min(seeds) < _CHOSEN_BELOW and files:
        yield likely(
            NOBODY,
            f"torch is seeded with {min(seeds)} on every rank before your code runs: dropout and augmentations will be"
            " the same on all ranks",
            Evidence(text="torch.initial_seed() on every rank", value=min(seeds)),
            _SEED_BY_RANK,
            detail=f"Python runs {', '.join(files[:4])} at its start.",
        )
