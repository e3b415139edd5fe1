"""Rules on random numbers that must be equal on all ranks, or must differ.

DistributedSampler(data, seed=seed + rank)        shares of different orders: samples twice, others never
torch.manual_seed(seed + rank); random_split(data, [900, 100])      each rank validates on others' training data
torch.manual_seed(seed); transforms.RandomCrop(224)                 all ranks draw the same crops
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddp_doctor.features.lint import names, training
from ddp_doctor.features.lint.chance import is_drawn, is_seeded_alike, reads_clock
from ddp_doctor.features.lint.ranks import chosen_ranks, rank_kind
from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value, written
from ddp_doctor.model.choices import Consequence, Severity

_TORCH_SEEDS = re.compile(r"^(torch\.(cuda\.)?manual_seed(_all)?|torch\.seed)$|seed_everything$|set_seed$|fix_seed")
_AUGMENTS = re.compile(
    r"^(torchvision\.transforms\.|albumentations\.)(\w+\.)?(Random|ColorJitter|\w*Augment|HorizontalFlip)"
)


@lint_rule("DDL182", "sampler-seed-by-rank", Consequence.WRONG, concerns=always)
def sampler_seeds_differ(script: Script) -> Iterator[Spot]:
    """A DistributedSampler has a different seed on each rank.

    Finds: A `seed` of a DistributedSampler that is computed from the rank (error), or from the clock or a random number
        without a common seed (warning).
    Why: Each rank takes every n-th sample of a shuffled list. With different seeds these are different lists: some
        samples are trained on by several ranks in an epoch, and others by none.
    Remedy: Give all ranks the same seed. Seed augmentation by rank instead.
    See: https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    for call in script.named(names.SAMPLER):
        seed, shuffled = call.argument(4, "seed"), call.argument(3, "shuffle")
        if shuffled.constant is False or call.argument(1, "num_replicas").constant == 1:
            continue
        why = _differs(script, seed)
        if why:
            yield Spot(
                call,
                f"The seed of this DistributedSampler depends on {why}: ranks shuffle differently",
                detail="Some samples are trained on by several ranks in an epoch, and others by none.",
                remedy="Use the same seed on all ranks",
                severity=None if why == "the rank" else Severity.WARNING,
            )


def _differs(script: Script, seed: Value) -> str:
    for part in seed.sources():
        if rank_kind(part):
            return "the rank"
        if reads_clock(part):
            return "the clock"
        if is_drawn(part) and isinstance(part, Call) and not is_seeded_alike(script, part):
            return "chance"
    return ""


@lint_rule("DDL183", "split-differs-by-rank", Consequence.WRONG)
def split_differs_by_rank(script: Script) -> Iterator[Spot]:
    """The data set is split at random, and each rank gets a different split.

    Finds: `torch.utils.data.random_split` without a generator after the random numbers were seeded by rank, or in a
        script that wraps a model and seeds nothing (warning), and scikit-learn's `train_test_split` without
        `random_state` if NumPy is not seeded or is seeded by rank. A `random_split` before `mp.spawn` is not reported.
    Why: One rank validates on samples that another rank trains on, so the validation loss is meaningless. The ranks'
        samplers use different data sets: some samples are used twice and others never.
    Remedy: Split with a fixed seed: `generator=torch.Generator().manual_seed(0)`, or `random_state=0`.
    See: https://pytorch.org/docs/stable/data.html#torch.utils.data.random_split
    """
    seeds = [call for call in script.calls if _TORCH_SEEDS.search(call.name) and call.arguments]
    for call in script.named("torch.utils.data.random_split", "torch.utils.data.dataset.random_split"):
        before = [seed for seed in seeds if seed.precedes(call) and chosen_ranks(call.conditions) is None]
        if chosen_ranks(call.conditions) is not None or not call.lacks(2, "generator"):
            continue
        write = "generator=torch.Generator().manual_seed(0)"
        if before and _is_by_rank(before[-1]):
            yield _split(call, f"line {before[-1].node.lineno} seeds by rank", write)
        elif script.wraps and not (script.uses_in_any_case("seed") or any(map(call.precedes, script.launches))):
            yield _split(call, "this script does not seed torch", write, Severity.WARNING)
    for call in script.named("sklearn.model_selection.train_test_split"):
        numpy_seeds = [each for each in script.calls if "seed" in (each.name or each.method).lower()]
        by_rank = any(_is_by_rank(each) for each in numpy_seeds if each.name.startswith("numpy."))
        is_drawn_alone = call.lacks(None, "random_state") and chosen_ranks(call.conditions) is None
        if is_drawn_alone and (by_rank or not numpy_seeds):
            yield _split(call, "NumPy is seeded differently on each rank", "random_state=0")


def _is_by_rank(seed: Call) -> bool:
    return any(rank_kind(part) for given in seed.arguments for part in given.sources())


def _split(call: Call, why: str, write: str, severity: Severity | None = None) -> Spot:
    return Spot(
        call,
        f"Each rank splits the data differently: {why}",
        detail="Ranks validate on samples that other ranks train on.",
        remedy="Split with the same seed on all ranks",
        write=(write,),
        severity=severity,
    )


@lint_rule("DDL179", "same-augmentation-on-all-ranks", Consequence.KNOWN)
def same_augmentation_on_all_ranks(script: Script) -> Iterator[Spot]:
    """All ranks draw the same random augmentation.

    Finds: Random transforms of torchvision or albumentations in a script that trains with a DistributedSampler and
        seeds torch without the rank, if the loader has neither `worker_init_fn` nor `generator`. A seed that the parent
        sets before `mp.spawn` does not count, because new processes do not inherit it. Forked processes do.
    Why: The workers of a DataLoader derive their seeds from torch's seed. With one seed for all ranks, the n-th sample
        of each rank gets the same crop and flip, so a step sees fewer different augmentations than samples.
    Remedy: Seed by rank after the model is built: `torch.manual_seed(seed + rank)`.
    See: https://pytorch.org/docs/stable/data.html#data-loading-randomness
    """
    starts = list(_starts_without_seed(script))
    seeds = [call for call in script.calls if _TORCH_SEEDS.search(call.name) and call.arguments]
    seeds = [seed for seed in seeds if _runs_on_import(script, seed) or not any(map(seed.precedes, starts))]
    if not script.wraps or not script.calls_any(names.SAMPLER) or not seeds or any(map(_is_by_rank, seeds)):
        return
    if not any(_AUGMENTS.match(call.name) for call in script.calls) or script.uses_in_any_case("worker_init_fn"):
        return
    if any(loader.argument(None, "generator") for loader in training.loaders(script)) or any(
        script.methods("manual_seed")
    ):
        return
    yield Spot(
        seeds[-1],
        "All ranks have the same seed, and draw the same random augmentation",
        remedy="Add the rank to the seed after the model is built",
        write=("torch.manual_seed(seed + rank)",),
    )


def _starts_without_seed(script: Script) -> Iterator[Call]:
    """Yield the calls that start new Python processes, which begin with a random seed."""
    spawns = script.named(names.SPAWN, "torch.multiprocessing.start_processes")
    yield from (call for call in spawns if call.argument(5, "start_method").constant != "fork")
    if script.texts & {"spawn", "forkserver"}:
        processes = script.named("torch.multiprocessing.Process", "multiprocessing.Process")
        yield from (*processes, *script.methods("Process"))


def _runs_on_import(script: Script, call: Call) -> bool:
    """Return True for module code outside ``if __name__ == "__main__":``, which new processes run again."""
    guards = (node for node in script.tree.body if isinstance(node, ast.If) and "__name__" in written(node.test))
    is_guarded = any(node.lineno <= call.node.lineno <= (node.end_lineno or 0) for node in guards)
    return call.place.function is None and not is_guarded
