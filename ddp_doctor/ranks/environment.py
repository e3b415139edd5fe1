"""The environment of a trial's ranks: the caller's, with the variables that torchrun would export for the job."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import ddp_doctor
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.finding import Setting
from ddp_doctor.model.recording import World
from ddp_doctor.settings import trials
from ddp_doctor.settings.in_force import GIVEN_BY_TORCHRUN, GIVEN_TO_SEVERAL

#: Variables that a launcher exports for its own world; a nested launch must not inherit them.
LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_LAUNCHER_PREFIXES = ("TORCHELASTIC_", "PET_")


def without_launcher(env: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment without the variables of a launcher's own world."""
    return {
        name: value
        for name, value in env.items()
        if name not in LAUNCHER_VARIABLES and not name.startswith(_LAUNCHER_PREFIXES)
    }


def python_path(env: Mapping[str, str]) -> str:
    """Return PYTHONPATH for a process that must find this package first."""
    package_parent = str(Path(ddp_doctor.__file__).parent.parent)
    given = env.get("PYTHONPATH")
    return f"{package_parent}{os.pathsep}{given}" if given else package_parent


#: The kernel allows 128 KiB; a value longer than a path is a mistake or an attack.
_LONGEST_VALUE = 4096


class Refused(ValueError):
    """This node refuses to run the trial, whichever node orders it; the message gives the reason."""


def with_settings(env: Mapping[str, str], settings: Sequence[Setting], node: int) -> dict[str, str]:
    """Return the environment of ``node`` with the settings of a fix.

    Raises Refused for variables that a trial must not set: the head of a run orders the settings of all nodes.
    """
    mine = dict(env)
    for setting in settings:
        if setting.name in trials.OF_LAUNCHER:
            continue
        if trials.read_by(setting.name, setting.action) is None:
            raise Refused(f"tests must not set {quoted(setting.name)}")
        value = setting.value or ""
        if not value.isprintable() or len(value) > _LONGEST_VALUE:
            raise Refused(f"tests must not set {setting.name} to {quoted(value)}")
        if setting.node_rank not in (None, node):
            continue
        mine.pop(setting.name, None)
        if setting.action == "set":
            mine[setting.name] = value
    return mine


def rank_environment(
    env: Mapping[str, str], world: World, rank: int, host: str, port: int, nccl_log: str
) -> dict[str, str]:
    """Return the environment of a rank in ddp-doctor's own trials (torchrun's names and defaults).

    ``nccl_log`` is the file for NCCL's log of this rank.
    """
    mine = without_launcher(env)
    node = world.ranks_of(world.node_of(rank))
    mine.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank - node.start),
        WORLD_SIZE=str(world.world_size),
        LOCAL_WORLD_SIZE=str(len(node)),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )
    defaults = GIVEN_BY_TORCHRUN | (GIVEN_TO_SEVERAL if len(node) > 1 else {})
    mine = defaults | mine
    # The recorder shows which rank made a different call; it is off by default for gloo before torch 2.13.
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        mine.setdefault(name, "2000")
    # NCCL's choice of transports is evidence, so its log goes to a file of the run. INIT prints all "via" lines, ENV
    # the settings in force, NET the devices, GRAPH the lines about GPUDirect (the subsystems in INFO calls of
    # src/transport/*.cc and src/graph/*.cc). The file is always set, because NCCL would empty the user's own file named
    # by NCCL_DEBUG_FILE, here or in an nccl.conf.
    if world.backend == "nccl":
        subsystems, file = "INIT,ENV,NET,GRAPH,BOOTSTRAP", nccl_log.replace("%", "%%")
        mine.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS=subsystems, NCCL_DEBUG_FILE=file)
    return mine
