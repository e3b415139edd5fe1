"""The GPUs that a job may use: CUDA_VISIBLE_DEVICES, and the number that a scheduler granted.

    CUDA_VISIBLE_DEVICES=2,0                    CUDA device 0 is GPU 2, device 1 is GPU 0
    CUDA_VISIBLE_DEVICES=0,1,9,2                without a GPU 9, CUDA stops at it and shows 0 and 1
    CUDA_VISIBLE_DEVICES=0,2,-1,1               -1 ends the list on purpose: 0 and 2
    CUDA_VISIBLE_DEVICES=GPU-8932f937,GPU-5a    UUIDs, or as much of their beginning as is unique
    CUDA_VISIBLE_DEVICES=MIG-5e7d…,MIG-77aa…    a process is shown one MIG slice only: the first
    CUDA_VISIBLE_DEVICES=                       set and empty: no GPU

Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; torch/cuda/__init__.py, _parse_visible_devices and
_transform_uuid_to_ordinals (strtoul reading, a repeated entry hides all); NVIDIA MIG User Guide, "CUDA Device
Enumeration" (one compute instance per process, without an additional entire GPU).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.facts.node.gpus import Gpu, GpusFact

#: Entries that hide the rest on purpose; SLURM writes NoDevFiles for a step without GPUs.
DELIBERATE_ENDS = ("", "-1", "none", "void", "nodevfiles")

#: A longer number is not a GPU's.
_MOST_DIGITS = 9
#: More than any node has.
_MOST_GPUS = 10_000

#: Every variable that decides which GPUs a job has; the gpus check records them.
GPU_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_GPUS_ON_NODE",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
)


@dataclass(frozen=True)
class Selection:
    """The result of CUDA_VISIBLE_DEVICES: selected positions in NVML's order, and entries that CUDA does not follow."""

    positions: tuple[int, ...]
    rejected: str | None = None  # the first entry that is not a GPU, or repeats one
    ignored: tuple[str, ...] = ()  # that entry and all entries after it


def visible_gpus(fact: GpusFact, env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that a CUDA process with this environment sees, in its order.

    An index counts as in NVML. CUDA counts the same way if all GPUs are of one model or CUDA_DEVICE_ORDER is
    PCI_BUS_ID. Otherwise it counts the fastest GPU first, and only the number of GPUs is certain. A GPU in MIG mode
    stands for the one slice that CUDA shows. GPUs that this user may not open are not included.
    """
    return tuple(fact.gpus[position] for position in select_devices(fact.gpus, env).positions)


def select_devices(gpus: Sequence[Gpu], env: Mapping[str, str]) -> Selection:
    """Return the devices out of ``gpus`` that CUDA_VISIBLE_DEVICES of ``env`` selects."""
    # CUDA lists neither a GPU that this user may not open, nor a GPU in MIG mode without a slice.
    denied = [gpu.error == "no_permission" or (gpu.mig_enabled and not gpu.mig_uuids) for gpu in gpus]
    allowed = tuple(at for at, is_denied in enumerate(denied) if not is_denied)
    value = env.get("CUDA_VISIBLE_DEVICES")
    selection = Selection(allowed) if value is None else _select(gpus, allowed, value)
    sliced = tuple(at for at in selection.positions if gpus[at].mig_uuids)
    return Selection(sliced[:1], selection.rejected, selection.ignored) if sliced else selection


def job_view(gpus: tuple[Gpu, ...], env: Mapping[str, str], *, in_container: bool) -> dict[str, object]:
    """Return the fields of GpusFact that show which of ``gpus`` the job of this environment may use."""
    selection = select_devices(gpus, env)
    sliceless = {gpu.index for gpu in gpus if gpu.mig_enabled and not gpu.mig_uuids}
    return {
        "granted": granted_gpus(env, in_container=in_container),
        "environment": {name: env[name] for name in GPU_VARIABLES if name in env},
        "visible": tuple(gpus[position].index for position in selection.positions),
        "rejected": selection.rejected,
        "hidden": hides_all(env),
        "used": tuple(sorted(sliceless | {gpu.index for gpu in job_gpus(gpus, env)})),
    }


def hides_all(env: Mapping[str, str]) -> bool:
    """Return True if CUDA_VISIBLE_DEVICES hides every GPU on purpose, to run the job on the CPU."""
    value = env.get("CUDA_VISIBLE_DEVICES")
    return value is not None and not _entries(value)


def _select(gpus: Sequence[Gpu], allowed: tuple[int, ...], value: str) -> Selection:
    entries = value.split(",")
    positions: list[int] = []
    for number, entry in enumerate(entries):
        position = _position(gpus, allowed, entry.strip(), by_name=value.startswith(("GPU-", "MIG-")))
        if position is not None and position not in positions:
            positions.append(position)
            continue
        if position is not None:
            if value.startswith("MIG-"):  # two slices of one GPU
                continue
            return Selection((), entry.strip(), tuple(entries))
        deliberate = entry.strip().lower() in DELIBERATE_ENDS
        return Selection(tuple(positions), None if deliberate else entry.strip(), tuple(entries[number:]))
    return Selection(tuple(positions))


def _position(gpus: Sequence[Gpu], allowed: tuple[int, ...], entry: str, *, by_name: bool) -> int | None:
    """Return the position of the GPU that ``entry`` names in ``gpus``, or None if it names none or several."""
    if not by_name:
        number = re.match(r"\+?0*([0-9]+)", entry)
        index = int(number[1]) if number and len(number[1]) <= _MOST_DIGITS else -1
        return allowed[index] if 0 <= index < len(allowed) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    matches = [at for at in allowed if _is_named(gpus[at], entry)]
    return matches[0] if len(matches) == 1 else None


def _is_named(gpu: Gpu, entry: str) -> bool:
    if entry.startswith("GPU-"):
        return gpu.uuid is not None and gpu.uuid.startswith(entry)
    if entry.startswith("MIG-GPU-"):  # MIG-<GPU uuid>/<GPU instance>/<compute instance>, before driver 470
        return gpu.uuid == entry[4:].partition("/")[0]
    return any(uuid.startswith(entry) for uuid in gpu.mig_uuids)


def granted_gpus(env: Mapping[str, str], *, in_container: bool = False) -> int | None:
    """Return the number of GPUs that a scheduler or container runtime granted this process, or None if unknown.

    CUDA_VISIBLE_DEVICES is not a grant by itself (users set it manually), but it lowers one: a task may be bound to a
    part of its step's GPUs. NVIDIA_VISIBLE_DEVICES counts only in a container, and "all" never counts: images and
    shells carry it onto machines without a GPU (NVIDIA/enroot issue 213). Inside a SLURM step, only the step's own list
    counts: steps on other nodes inherit the job's. 0 is a grant without GPUs.
    """
    lists = ("SLURM_STEP_GPUS",) if "SLURM_STEP_ID" in env else ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
    counts = [len(_entries(env[name])) for name in lists if env.get(name)]
    on_node = env.get("SLURM_GPUS_ON_NODE", "")
    if re.fullmatch(r"[0-9]{1,4}", on_node) and ("SLURM_STEP_ID" not in env or counts):
        counts.append(int(on_node))
    given = env.get("NVIDIA_VISIBLE_DEVICES", "")
    if in_container and re.match(r"[0-9]|GPU-|MIG-", given):
        counts.append(len(_entries(given)))
    if counts and "CUDA_VISIBLE_DEVICES" in env:
        counts.append(len(_entries(env["CUDA_VISIBLE_DEVICES"])))
    return min(counts, default=None)


def _entries(value: str) -> list[str]:
    """Return the entries of a comma list before the one that ends it on purpose; SLURM may write "0-3"."""
    found: list[str] = []
    for entry in value.split(","):
        if entry.strip().lower() in DELIBERATE_ENDS or len(found) > _MOST_GPUS:
            break
        span = re.fullmatch(r"\s*([0-9]{1,4})-([0-9]{1,4})\s*", entry)
        found += map(str, range(int(span[1]), int(span[2]) + 1)) if span else [entry.strip()]
    return found


def job_gpus(gpus: tuple[Gpu, ...], env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that the job with this environment will use, to evaluate their health.

    These are the GPUs that CUDA_VISIBLE_DEVICES shows, or, with only SLURM_JOB_GPUS set, as in a prolog, the GPUs with
    these device numbers. Other GPUs on a shared node belong to other jobs.
    """
    shown = tuple(gpus[position] for position in select_devices(gpus, env).positions)
    granted = env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS")
    if "CUDA_VISIBLE_DEVICES" in env or not granted:
        return shown
    numbers = set(_entries(granted))
    named = tuple(gpu for gpu in shown if str(gpu.minor_number) in numbers)
    # Inside a device cgroup NVML lists only the granted GPUs, under numbers that may differ.
    return named if len(named) == len(numbers) else shown
