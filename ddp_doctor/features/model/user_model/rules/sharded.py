"""DD790 to DD799: models in fully_shard: how ranks shard them, their optimizers, steps and checkpoints."""

from collections.abc import Iterator

from ddp_doctor.features.model.user_model.facts import UserModel
from ddp_doctor.features.model.user_model.names import Names
from ddp_doctor.features.model.user_model.sharded_facts import Off, ShardedModel
from ddp_doctor.features.model.user_model.wording import (
    calls,
    code,
    culprits,
    facts,
    minority,
    names,
    none_due,
    on_ranks,
)
from ddp_doctor.knowledge.ddp import manifests
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.torch_calls import in_model_code
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.ranks import rank_culprits, rank_of, ranks_at

_FULLY_SHARD = "distributed.fsdp.fully_shard.html"


def _sharded(recording: Recording) -> list[tuple[FactAt[UserModel], ShardedModel]]:
    """Return the sharding of all ranks; empty if they shard differently, which DD790 reports."""
    alike = (rank for rank in facts(recording) if rank.fact.stopped != "manifest")
    return [(rank, rank.fact.sharded) for rank in alike if rank.fact.sharded is not None]


@rule("DD790", "model-sharded-otherwise-on-a-rank", Consequence.HANGS, UserModel)
def sharded_otherwise(recording: Recording) -> Iterator[Draft]:
    """Ranks shard the same model in different ways.

    Finds: Some ranks have another unit, mesh, placement, MixedPrecisionPolicy, ``reshard_after_forward`` or offload
        policy of a parameter, or a factory that returns another mesh. They are compared before any collective of the
        model.
    Why: Collectives gather and reduce each unit, and all ranks must agree on their order, size and type. The job hangs,
        or adds bytes of different parameters.
    Remedy: Call fully_shard with the same arguments on the same modules on every rank.
    See: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    kept = {rank_of(rank): rank.fact.manifest for rank in facts(recording) if rank.fact.manifest is not None}
    different = manifests.compare(manifests.restored(kept))
    of_sharding = [difference for difference in different if difference.kind in manifests.OF_SHARDING]
    for (ranks, peer, sure), found in grouped(
        ((each.ranks, each.peer, each.sure), each) for each in of_sharding
    ).items():
        where = ranks_at(recording, ranks)
        yield proved(
            rank_culprits(recording, UserModel, ranks) if sure else (),
            f"Your model is sharded differently on {where} and rank {peer}: {found[0].words(where)}",
            (
                Evidence(text=f"{each.kind} of {each.names[0]}: {each.here} on {where}, {each.there} on rank {peer}")
                for each in found
            ),
            in_model_code("Call fully_shard with the same arguments on the same modules on every rank"),
            detail=f"It is {', '.join(found[0].names)}."
            + ("" if sure else " No more than half of the ranks agree, so it is unsure which are right."),
        )
    if different:
        return
    # If the mesh is a submesh, each rank has a different one.
    meshes = grouped(
        (rank.fact.mesh, rank)
        for rank in facts(recording)
        if rank.fact.mesh is None or len(rank.fact.mesh.ranks) == rank.fact.world_size
    )
    if len(meshes) < 2:
        return
    usual = max(meshes, key=lambda mesh: len(meshes[mesh]))
    odd = [rank for mesh, members in meshes.items() if mesh != usual for rank in members]
    is_sure = 2 * len(meshes[usual]) > len(facts(recording))
    yield proved(
        culprits(recording, odd) if is_sure else NOBODY,
        f"{odd[0].fact.model} returns a different mesh on {on_ranks(recording, odd)} than on other ranks",
        (Evidence(text=f"{mesh} on {on_ranks(recording, members)}") for mesh, members in meshes.items()),
        in_model_code("Create the mesh with the same arguments on every rank"),
    )


@rule("DD791", "sharded-model-is-no-unit-itself", Consequence.COST, UserModel)
def root_is_no_unit(recording: Recording) -> Iterator[Draft]:
    """fully_shard is called for parts of a model but not for the model itself.

    Finds: The model contains units, but is not a unit itself, and all its parameters are in those units. If some
        parameters are not, DD793 reports it.
    Why: Each unit is a separate root: no unit is gathered ahead of the next forward, and each keeps its full parameters
        between forward and backward, as fully_shard does for the root. This saves little memory.
    Remedy: Call ``fully_shard(model)`` after its units.
    See: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    found = [(rank, sharded) for rank, sharded in _sharded(recording) if not sharded.root and not sharded.outside.count]
    if not found:
        return
    rank, sharded = found[0]
    yield proved(
        NOBODY,
        f"fully_shard() was not called on {rank.fact.model} itself, only on {sharded.unit_count} modules in it",
        Evidence(text="units that are their own root", value=float(sharded.unit_count), expected=1.0),
        in_model_code("Call fully_shard(model) after its units", reference=_FULLY_SHARD),
    )


@rule("DD793", "parameters-outside-of-sharding", Consequence.WRONG, UserModel)
def outside(recording: Recording) -> Iterator[Draft]:
    """No unit shards some trainable parameters.

    Finds: Some parameters are not DTensors although others are: fully_shard was not called on the model itself, they
        are in ``ignored_params``, or they were added afterwards. Severity is error if a step shows that their gradients
        are not averaged, and warning if steps could not be compared. Not reported if the job averages them itself.
    Why: fully_shard reduces only the gradients of sharded parameters. Each rank trains the others on its own batches
        only, so the ranks have different models from the first step.
    Remedy: Call ``fully_shard(model)`` last, after adding all parameters, or reduce their gradients in the step.
    See: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    found = [(rank, sharded) for rank, sharded in _sharded(recording) if sharded.outside.count]
    if not found:
        return
    rank, sharded = found[0]
    off = {each.parameter: each for _, here in found for each in here.off if each.parameter in here.outside.names}
    if sharded.loss_alone is not None and not off:
        return
    why = "" if sharded.root else ": fully_shard() was not called on the model itself"
    yield likely(
        code(*sharded.outside.names[:8]),
        f"{names(sharded.outside)} {'is' if sharded.outside.count == 1 else 'are'} not sharded{why}",
        [_evidence(each, rank_of(rank)) for each in off.values()][:8]
        or none_due("trainable parameters in no unit", sharded.outside.count),
        in_model_code("Call fully_shard(model) last, after creating all parameters", reference=_FULLY_SHARD),
        in_model_code("Average their gradients in your step, and keep them in ignored_params"),
        detail=f"Model {rank.fact.model}:"
        f" {'no rank averages their gradients' if off else 'fully_shard() does not average their gradients'}.",
        severity=None if off else Severity.WARNING,
    )


def _evidence(off: Off, rank: int) -> Evidence:
    return Evidence(
        text=f"rank {rank}, {off.parameter}: mean difference from a single rank after the step",
        value=off.error,
        expected=off.allowed,
        expected_from=f"at most, by rounding; the step moves it by {off.moved:.3g}",
    )


@rule("DD794", "sharded-steps-are-not-those-of-one-rank", Consequence.WRONG, UserModel, explained_by=("DD779",))
def off(recording: Recording) -> Iterator[Draft]:
    """Steps of the sharded model give different parameters than one rank alone with the same batches.

    Finds: After a step of the job (the factory's ``step`` and ``optimizer``, if it has them), a shard differs from a
        copy without fully_shard whose gradients are averaged over all ranks. Also reported if a rank's optimizer or
        step does something else with equal parameters and gradients.
    Why: The gradients do not come from the batches of all ranks, or a shard is not trained. The loss may still fall.
    Remedy: Check ``set_requires_gradient_sync``, ``set_requires_all_reduce`` and code that depends on the rank.
    See: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    found = _sharded(recording)
    drifted = [rank for rank, sharded in found if sharded.drifted.count]
    if drifted:
        yield _drift(recording, drifted)
        return
    off = [(rank, here) for rank, sharded in found if (here := [each for each in sharded.off if _is_in(sharded, each)])]
    if not off:
        return
    ranks, fact = [rank for rank, _ in off], off[0][0].fact
    assert fact.sharded is not None
    shown = Names(names=tuple(each.parameter for each in off[0][1]), count=len(off[0][1]))
    where = on_ranks(recording, ranks)
    step = "second step" if fact.sharded.off_step else "first step"
    if all(each.unchanged for _, here in off for each in here):
        what = f"The {step} leaves {names(shown)} of {fact.model} unchanged on {where}"
        cure = "Let the last backward of a step reduce: set_requires_gradient_sync(True), set_requires_all_reduce(True)"
    else:
        what = (
            f"After the {step}, {names(shown)} of {fact.model} on {where} {'differs' if shown.count == 1 else 'differ'}"
            " from what one rank alone computes from the batches of all ranks"
        )
        cure = "Look for gradients that are not reduced, hooks that change them, and code that asks for the rank"
    yield likely(
        (*minority(recording, ranks), *code(*shown.names[:8])),
        what,
        (_evidence(here[0], rank_of(rank)) for rank, here in off[:8]),
        in_model_code(cure, reference=_FULLY_SHARD),
        detail="One rank alone: a copy without fully_shard, whose gradients are averaged over all ranks."
        + ("" if fact.sharded.optimizer_given else " The factory returns no optimizer, so it is AdamW."),
    )


def _is_in(sharded: ShardedModel, off: Off) -> bool:
    """Return True if fully_shard has the parameter; DD793 reports the others."""
    return off.parameter not in sharded.outside.names


def _drift(recording: Recording, ranks: list[FactAt[UserModel]]) -> Draft:
    fact = ranks[0].fact
    assert fact.sharded is not None
    own = "Your step" if fact.sharded.step_given else "Your optimizer"
    return likely(
        (*minority(recording, ranks), *code(*fact.sharded.drifted.names[:8])),
        f"{own} updates {names(fact.sharded.drifted)} of {fact.model} on {on_ranks(recording, ranks)} differently"
        " than on the first rank, from equal gradients",
        none_due("parameters that differ after the steps", fact.sharded.drifted.count, "the first rank's"),
        in_model_code(
            "Give the optimizer the same parameters and options on every rank, and let no step ask for the rank"
        ),
        detail="Seen in copies without fully_shard, which have the same parameters and gradients on all ranks.",
    )


@rule("DD795", "optimizer-holds-stale-parameters", Consequence.WRONG, UserModel)
def stale_optimizer(recording: Recording) -> Iterator[Draft]:
    """An optimizer holds the parameters from before fully_shard.

    Finds: The optimizer's groups contain tensors that are not parameters of the sharded model.
    Why: fully_shard replaces the existing parameters. The old ones get no gradient, so the optimizer changes nothing,
        and the loss does not fall.
    Remedy: Create the optimizer from ``model.parameters()`` after fully_shard.
    See: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    found = [(rank, sharded) for rank, sharded in _sharded(recording) if sharded.stale]
    if not found:
        return
    ranks, sharded = [rank for rank, _ in found], found[0][1]
    yield proved(
        culprits(recording, ranks),
        f"{sharded.stale} of {sharded.stale_of} tensors that the {sharded.optimizer} of {ranks[0].fact.model} holds on"
        f" {on_ranks(recording, ranks)} are not parameters of the sharded model",
        (
            none_due(f"rank {rank_of(rank)}: tensors that are not parameters of the model", here.stale)
            for rank, here in found[:8]
        ),
        in_model_code("Make the optimizer of model.parameters() after fully_shard", reference=_FULLY_SHARD),
        detail="fully_shard puts new parameters in place of the old ones. No step was run.",
    )


@rule("DD796", "sharded-over-a-part-of-the-ranks", Consequence.WRONG, UserModel)
def over_a_part(recording: Recording) -> Iterator[Draft]:
    """A model is sharded over some of the ranks, but not replicated over the others.

    Finds: All meshes over which parameters are sharded have fewer ranks than the run.
    Why: Gradients are averaged only within a mesh, so ranks of different meshes train different models. With one
        dimension of a two-dimensional mesh (``mesh["shard"]``), nothing is averaged over the other.
    Remedy: Pass the mesh with both dimensions, (replicate, shard), to fully_shard.
    See: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    found = [(rank, sharded) for rank, sharded in _sharded(recording) if rank.fact.stopped == "mesh"]
    if not found:
        return
    meshes = sorted({mesh.ranks for _, sharded in found for mesh in sharded.meshes})
    rank, least = found[0][0], min(meshes, key=len)
    yield likely(
        NOBODY,
        f"{rank.fact.model} is sharded over {len(least)} of {rank.fact.world_size} ranks, and its gradients are"
        f" averaged over only those {len(least)}",
        (Evidence(text=f"sharded over ranks {' '.join(map(str, ranks))}") for ranks in meshes[:8]),
        in_model_code(
            "Give fully_shard the whole mesh: of two dimensions, (replicate, shard), for HSDP", reference=_FULLY_SHARD
        ),
        detail="No step was run. If the other ranks do another part of the work (pipeline, experts), leave this out:"
        " --ignore DD796.",
    )


@rule("DD797", "sharded-model-is-not-loaded-as-saved", Consequence.FAILS, UserModel)
def not_loaded(recording: Recording) -> Iterator[Draft]:
    """torch.distributed.checkpoint does not restore a sharded model.

    Finds: After get_state_dict, save, load and set_state_dict, a trainable parameter differs from the saved one,
        compared bit for bit. Severity is warning if one of these calls raises. Models of more than 64 MiB are not
        saved.
    Why: The job resumes with parameters that were never trained, or does not resume.
    Remedy: Fix the cause that the finding names: the model's own state_dict omits parameters, or the optimizer has no
        state for some parameters because they get no gradient.
    See: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
    """
    found = _sharded(recording)
    lost = [(rank, sharded) for rank, sharded in found if sharded.not_loaded.count]
    failed = [(rank, sharded) for rank, sharded in found if sharded.save_trouble]
    if lost:
        rank, sharded = lost[0]
        yield proved(
            code(*sharded.not_loaded.names[:8]),
            f"torch.distributed.checkpoint loads {names(sharded.not_loaded)} of {rank.fact.model}"
            " with values that differ from those saved",
            none_due("parameters that are not as saved", sharded.not_loaded.count),
            in_model_code("Look for a state_dict or load_state_dict of your own, or hooks, that leave it out"),
        )
    elif failed:
        rank, sharded = failed[0]
        trouble = sharded.save_trouble or ""
        yield likely(
            NOBODY,
            f"{rank.fact.model} cannot be saved and loaded with torch.distributed.checkpoint:"
            f" {trouble.partition('. ')[0].replace(': ', ' raises ', 1)}",
            Evidence(text=trouble),
            in_model_code(
                "Freeze or remove what gets no gradient"
                if "Missing optimizer state" in trouble
                else "Fix what it says, unless your job saves in another way"
            ),
            severity=Severity.WARNING,
        )


@rule("DD798", "sharded-step-calls-other-units", Consequence.HANGS, UserModel, explained_by=("DD776",))
def other_calls(recording: Recording) -> Iterator[Draft]:
    """Ranks call sharded units differently in a step.

    Finds: In the factory's ``step``, which each rank runs alone with a copy without fully_shard, reports the first call
        of a unit that differs, with its line.
    Why: Each call gathers parameters on all ranks together, and its backward reduces gradients. A rank that processes
        one micro-batch less, or leaves the step early, keeps the others waiting, and the job hangs.
    Remedy: Run the same number of forwards and backwards on every rank, if necessary with a batch that does not count.
    See: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    parted = [(rank, rank.fact.step_parting) for rank in facts(recording) if rank.fact.step_parting is not None]
    if not parted:
        return
    ranks, (first, parting) = [rank for rank, _ in parted], parted[0]
    lines = dict.fromkeys(call.where for call in (parting.here, parting.there) if call is not None)
    yield likely(
        (*minority(recording, ranks), *code(*lines)),
        f"In your step, rank {rank_of(first)} {calls(parting.here)}, but rank {parting.peer} {calls(parting.there)}",
        (Evidence(text=f"rank {rank_of(rank)}: call {each.index} is another one") for rank, each in parted[:8]),
        in_model_code(
            "Make the same number of forwards and backwards on every rank, if need be of a batch that counts nothing"
        ),
        detail="Each call gathers parameters on all ranks together: the job hangs. No step of the sharded model was"
        " run.",
    )


@rule("DD799", "sharded-replicas-start-apart", Consequence.WRONG, UserModel)
def starts_apart(recording: Recording) -> Iterator[Draft]:
    """Ranks start with different parameters than the first rank, although they should be equal.

    Finds: Before the first step, replicas of a model over a two-dimensional mesh (HSDP), or parameters that no unit
        shards, differ.
    Why: fully_shard broadcasts nothing. Replicas that start with different parameters get equal gradients, and stay
        different.
    Remedy: Set the same seed on all ranks before creating the model, or load the same checkpoint.
    See: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    found = [(rank, sharded) for rank, sharded in _sharded(recording) if sharded.apart.count]
    if not found:
        return
    ranks, (first, sharded) = [rank for rank, _ in found], found[0]
    apart, shards = sharded.apart, max((mesh.shape[-1] for mesh in sharded.meshes), default=1)
    # Each rank compares its entire replica, so one rank that differs makes all ranks of its replica differ.
    by_replica = shards > 1 and not set(apart.names) <= set(sharded.outside.names)
    replica = f"the {'replica' if len(ranks) <= shards else 'replicas'} of " if by_replica else ""
    yield proved(
        (*(() if by_replica else minority(recording, ranks)), *code(*apart.names[:8])),
        f"{first.fact.model} starts with other parameters on {replica}{on_ranks(recording, ranks)}"
        f" than on the first rank: {names(apart)}",
        none_due("parameters that differ before the first step", apart.count),
        in_model_code("Seed all ranks alike before the model is made, or load the same checkpoint on all"),
        detail="fully_shard broadcasts nothing to replicas: they stay apart. No step was run.",
    )
