"""Save and load a sharded model as a job does: get_state_dict, torch.distributed.checkpoint, set_state_dict."""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ddp_doctor.facts.ddp.names import Names
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.probing import checkpoints
from ddp_doctor.probing.user_model.sharded_steps import read
from ddp_doctor.probing.user_model.steps import counted
from ddp_doctor.probing.user_model.unsharded import local

#: Parameters of a model that is saved: with the state of an optimizer it is three times as much on the disk.
_MOST_BYTES = 64 << 20
#: In each parameter when it is loaded, so that one that no file holds shows.
_NO_WEIGHT = -1234.0


def save_and_load(ctx: RankContext, model: Any, optimizer: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``ShardedModel``: what came of it. Afterwards the model is not to be used any more."""
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
        unseen = "" if folder.is_dir() else f"the ranks share no folder: {folder.parent} is another one on some"
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

    known: Any = checkpoint  # it exports its functions without a word to type checkers
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
    return {"saved": True, "not_loaded": counted(lost) if lost else Names()}
