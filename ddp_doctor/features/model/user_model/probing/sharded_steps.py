"""Steps of a sharded model as the job makes them, compared with one rank alone with the batches of all ranks.

Then the model is saved and loaded as in a job: get_state_dict, torch.distributed.checkpoint, set_state_dict.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ddp_doctor.features.model.user_model import gradient_tolerance
from ddp_doctor.features.model.user_model.names import Names
from ddp_doctor.features.model.user_model.probing import sharding, steps
from ddp_doctor.features.model.user_model.probing.batches import Batch
from ddp_doctor.features.model.user_model.probing.passes import clear, finite, sample
from ddp_doctor.features.model.user_model.probing.unsharded import Copy, Pair, local, shard_of
from ddp_doctor.features.model.user_model.probing.user_code import SEED, Loaded, Misuse, seed
from ddp_doctor.features.model.user_model.sharded_facts import Off
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.probing import checkpoints
from ddp_doctor.probing.rank_identity import finish

#: Maximum bytes of a model's parameters to save; with optimizer state, the files are three times larger.
_MOST_BYTES = 64 << 20
#: Written to each parameter before loading, to detect a parameter that no file holds.
_NO_WEIGHT = -1234.0
#: Elements of a parameter that are compared with the first rank's.
_ELEMENTS_COMPARED = 4096


@dataclass
class Trained:
    """The results of the steps on one rank: its shard of every parameter before and after each step, and its losses."""

    before: list[Any] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    shards: list[list[Any]] = field(default_factory=list)


def optimizer_of(loaded: Loaded, model: Any) -> Any:
    """Return the factory's optimizer for a model's parameters, or AdamW."""
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if loaded.optimizer is not None:
        return loaded.optimizer(parameters)
    # One parameter at a time: lists cannot mix sharded and full tensors.
    return torch.optim.AdamW(parameters, foreach=False)


def held_elsewhere(optimizer: Any, model: Any) -> tuple[int, int]:
    """Return how many of the optimizer's tensors are not the model's parameters, and how many it holds."""
    known = {id(parameter) for parameter in model.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return sum(1 for parameter in held if id(parameter) not in known), len(held)


def step(loaded: Loaded, model: Any, optimizer: Any, batch: Batch, number: int) -> float | None:
    """Run one full step, the factory's ``step`` or a plain loop's; return its loss, or None if unknown."""
    import torch

    model.train()
    seed(SEED + number)
    if loaded.step is not None:
        loss = loaded.step(model, optimizer, batch.given)
    else:
        loss = batch.loss(batch.forward(model))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with suppress(AttributeError, TypeError, ValueError, RuntimeError):  # a step may return anything
        return finite(loss if isinstance(loss, torch.Tensor) else torch.tensor(float(loss)))
    return None


def sharded(
    ctx: RankContext, loaded: Loaded, optimizer: Any, given: Mapping[int, Batch], parameters: Sequence[Any]
) -> Trained:
    """Run the steps of the user's model. Raises StepFailed; the peers of a failed rank wait inside their steps."""
    done = Trained(read(parameters))
    clear(loaded.model)
    for number, batch in given.items():
        try:
            with ctx.step("sharded_step", f"batch {number}"):
                done.losses.append(step(loaded, loaded.model, optimizer, batch, number))
                finish(ctx.device)
        except Exception as error:  # noqa: BLE001 - the user's code with fully_shard may raise anything
            raise steps.StepFailed.of(error) from None
        done.shards.append(read(parameters))
    return done


def alone(ctx: RankContext, loaded: Loaded, copy: Copy, given: Mapping[int, Batch], name: str) -> Trained:
    """Run the same steps of the copy. Raises Misuse if the optimizer is not the copy's."""

    def shards() -> list[Any]:
        return [shard_of(pair, pair.whole).cpu().clone() for pair in copy.pairs]

    done, optimizer = Trained(shards()), optimizer_of(loaded, copy.model)
    if held_elsewhere(optimizer, copy.model)[0]:
        raise Misuse("optimizer(parameters) returns an optimizer of other parameters; pass it the given parameters")
    clear(copy.model)
    for number, batch in given.items():
        with ctx.step("step_alone", f"{name}, batch {number}"):
            done.losses.append(step(loaded, copy.model, optimizer, batch, number))
        done.shards.append(shards())
    clear(copy.model)
    return done


def read(parameters: Sequence[Any]) -> list[Any]:
    """Return this rank's part of these parameters, copied to the CPU."""
    return [local(parameter).cpu().clone() for parameter in parameters]


def drifted(ctx: RankContext, copy: Copy, initial: Sequence[Any]) -> list[str]:
    """Return the parameters that the steps changed differently than on the first rank, from equal gradients.

    Ranks may add in a different order: for example, the norm for clipping differs in its last bit if tensors are
    aligned differently.
    """
    import torch
    import torch.distributed as dist

    mine = [sample(pair.whole, pair.whole, _ELEMENTS_COMPARED) for pair in copy.pairs]
    with ctx.step("broadcast", "parameters of the first rank after the steps"):
        shared = torch.cat(mine).to(ctx.device)
        dist.broadcast(shared, dist.get_global_rank(ctx.group, 0), group=ctx.group)
    found, firsts = [], torch.split(shared.cpu(), list(map(len, mine)))
    for pair, own, first, value in zip(copy.pairs, mine, firsts, initial, strict=True):
        start = sample(value, value, _ELEMENTS_COMPARED)
        rounding = gradient_tolerance.relative(str(pair.whole.dtype).removeprefix("torch."))
        allowed = rounding * torch.maximum((own - start).abs(), (first - start).abs()).sum()
        allowed += gradient_tolerance.SMALLEST + _eps(pair.whole.dtype) * own.abs().sum()
        if bool((own - first).abs().sum() > allowed):
            found.append(pair.sharded.name)
    return found


def _eps(dtype: Any) -> float:
    """Return the distance from 1 to the next number of a type."""
    import torch

    return float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0


def round_once(copy: Copy, initial: Sequence[Any]) -> None:
    """Set the copy to its initial parameters, each rounded up or down once in the type that it computes in."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for pair, value in zip(copy.pairs, initial, strict=True):
            up = torch.randint(0, 2, value.shape, generator=generator).to(value.device) * 2 - 1
            policy = pair.sharded.policy
            computed = (policy.param_dtype if policy else None) or pair.whole.dtype
            pair.whole.copy_(value * (1 + up * _eps(computed)) if value.is_floating_point() else value)


def off(pairs: Sequence[Pair], number: int, done: Trained, alone: Trained, rounded: Trained) -> list[Off]:
    """Return the parameters whose shard differs from the copy's after this step.

    ``rounded`` are the copy's steps from parameters that were rounded once more, so their difference is only rounding.
    """
    import torch

    def moved_by(trained: Trained, place: int) -> Any:
        return trained.shards[number][place].double() - trained.before[place].double()

    found = []
    for place, pair in enumerate(pairs):
        got, wanted = done.shards[number][place], alone.shards[number][place]
        if not got.numel() or not bool(wanted.isfinite().all()):  # a rank may have no row; DD779 reports NaN
            continue
        move = moved_by(alone, place)
        moved, spread = (float(tensor.abs().mean()) for tensor in (move, move - moved_by(rounded, place)))
        error = float((got.double() - wanted.double()).abs().mean())
        kept = _eps(got.dtype) * float(wanted.abs().mean())
        allowed = _relative(pair) * moved + gradient_tolerance.SPREADS * spread + kept + gradient_tolerance.SMALLEST
        if not error <= allowed:
            known = error if error - error == 0.0 else None
            same = torch.equal(got, done.before[place])
            found.append(Off(parameter=pair.sharded.name, error=known, allowed=allowed, moved=moved, unchanged=same))
    return found


def _relative(pair: Pair) -> float:
    """Return the part of a step that may be lost by the types that the unit computes and reduces in."""
    policy = pair.sharded.policy
    types = [pair.whole.dtype, *((policy.param_dtype, policy.reduce_dtype) if policy else ())]
    return max(gradient_tolerance.relative(str(dtype).removeprefix("torch.")) for dtype in types if dtype is not None)


def why_not(model: Any, most_bytes: int) -> str:
    """Return why one rank alone cannot run the same steps, or ""."""
    found = list(sharding.parameters(model))
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size > most_bytes:
        return f"its {size / 2**30:.1f} GiB of parameters are too many for a whole copy on each rank"
    of_unit = [each for each in found if each.unit is not None]
    if any(each.policy is None for each in of_unit):
        return "this torch does not tell how fully_shard was called"
    for each in of_unit:
        assert each.policy is not None
        if each.parameter.device_mesh.ndim > each.policy.mesh_dimensions:
            mesh = sharding.in_words(sharding.mesh_of(each.parameter.device_mesh))
            return f"{each.name} is parallel in another way, too: its mesh is {mesh}"
    if any(each.unit is None and sharding.is_dtensor(each.parameter) for each in found):
        return "some of its DTensors are not fully_shard's"
    if len({each.parameter.device_mesh for each in of_unit}) > 1:
        return "its units are sharded over several meshes"
    return ""


def save_and_load(ctx: RankContext, model: Any, optimizer: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Save and load; return the fields of ``ShardedModel`` for it. The model is unusable afterwards."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())
    reason = checkpoints.reason_against(ctx)
    if size > _MOST_BYTES:
        reason = f"its {size / 2**20:.0f} MiB of parameters are more than is saved here ({_MOST_BYTES >> 20} MiB)"
    if reason := checkpoints.first_reason(ctx, "can be saved", reason):
        return {"not_saved": reason}
    try:
        folder = checkpoints.folder_of_all(ctx)
    except Skip as skip:
        return {"not_saved": str(skip)}
    try:
        unseen = (
            "" if folder.is_dir() else f"the ranks share no directory: {folder.parent} is a different one on some ranks"
        )
        if reason := checkpoints.first_reason(ctx, "see the folder", unseen):
            return {"not_saved": reason}
        return _in(ctx, folder, model, optimizer, parameters)
    finally:
        if ctx.group_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _in(ctx: RankContext, folder: Path, model: Any, optimizer: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    import torch
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    known: Any = checkpoint  # its functions are not visible to type checkers
    wanted = read(list(parameters.values()))
    state: dict[str, Any] = {}

    def take() -> None:
        state["model"], state["optimizer"] = get_state_dict(model, optimizer)

    def forget() -> None:
        with torch.no_grad():
            for parameter in parameters.values():
                local(parameter).fill_(_NO_WEIGHT)

    def give() -> None:
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def run(name: str, part: Callable[[], object]) -> None:
        with ctx.step("checkpoint", name):
            part()

    parts: tuple[tuple[str, Callable[[], object]], ...] = (
        ("get_state_dict", take),
        ("save", lambda: known.save(state, checkpoint_id=folder / "saved", process_group=ctx.group)),
        ("forget", forget),
        ("get_state_dict again", take),
        ("load", lambda: known.load(state, checkpoint_id=folder / "saved", process_group=ctx.group)),
        ("set_state_dict", give),
    )
    for name, part in parts:
        error = checkpoints.failure(partial(run, name, part))
        if error := checkpoints.first_reason(ctx, f"checkpoint, {name}", error and f"{name}: {error}"):
            return {"save_trouble": error}
    found = read(list(parameters.values()))
    pairs = zip(parameters, wanted, found, strict=True)
    lost = [name for name, old, new in pairs if not torch.equal(old, new)]
    return {"saved": True, "not_loaded": steps.counted(lost) if lost else Names()}
