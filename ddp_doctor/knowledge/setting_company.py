"""Beside which other settings a setting does nothing, or harm: what the tables of pairs come to for one of them.

NCCL_IB_GID_INDEX=3    does not go with NCCL_IB_DISABLE and NCCL_NET
NCCL_SHM_DISABLE=1     does not go with NCCL_P2P_DISABLE
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from ddp_doctor.knowledge.setting_conflicts import conflicts
from ddp_doctor.knowledge.setting_pairs import idle

#: Values of the settings that decide about others, one for each row of setting_pairs and setting_conflicts.
DECIDING: tuple[Mapping[str, str], ...] = (
    {"NCCL_ALGO": "NVLS"},
    {"NCCL_COMM_BLOCKING": "1"},
    {"NCCL_CUMEM_ENABLE": "0"},
    {"NCCL_IB_DISABLE": "1"},
    {"NCCL_IB_GID_INDEX": "3"},
    {"NCCL_MNNVL_ENABLE": "1"},
    {"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
    {"NCCL_NET": "IB"},
    {"NCCL_NET": "Socket"},
    {"NCCL_NVLS_ENABLE": "0"},
    {"NCCL_NVLS_ENABLE": "1"},
    {"NCCL_P2P_DISABLE": "1"},
    {"NCCL_SHM_DISABLE": "1"},
    {"TORCH_FR_BUFFER_SIZE": "0"},
    {"TORCH_NCCL_BLOCKING_WAIT": "1"},
    {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"},
)


def does_not_go_with(settings: Mapping[str, str]) -> tuple[str, ...]:
    """The names beside which one of these settings does nothing, or harm, in the order of the alphabet."""
    return _does_not_go_with(tuple(settings.items()))


@lru_cache(maxsize=256)
def _does_not_go_with(settings: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    env = dict(settings)
    return tuple(sorted({name for more in DECIDING for name in _against(env, more)}))


def _against(env: Mapping[str, str], more: Mapping[str, str]) -> Iterator[str]:
    (name,) = more
    if name in env:
        return
    together = {**env, **more}
    idlers = {idler for row, names in idle(together) if row.name == name for idler in names}
    fighters = {one for found in conflicts(together, ()) if name in found.names for one in found.names}
    if env.keys() & (idlers | fighters):
        yield name
