"""Operations on another GPU than the GPU of the process group."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddp_doctor.engine.hang.rules.common import MOST_LINES, culprits, names, step_words
from ddp_doctor.features import run_features
from ddp_doctor.model.check import PROCESS_GROUP
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.torch_calls import ONE_GPU_EACH, in_model_code
from ddp_doctor.views.failed_trials import UsedElsewhere, used_elsewhere
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE

_MOVE_TENSOR = in_model_code("Move the tensor to the GPU of the process group")


@dataclass(frozen=True)
class _Rank:
    """A rank whose operation was refused: its check, the devices, the operation and the line of user code."""

    rank: int
    check: str
    devices: UsedElsewhere
    doing: str
    where: str


@rule("DD609", "operation-on-another-gpu-than-the-groups", Consequence.HANGS)
def another_gpu(recording: Recording) -> Iterator[Draft]:
    """A rank's NCCL group is bound to one GPU while its tensors are on another.

    Finds: Reports ranks on which torch prints "ProcessGroupNCCL is bound to device cuda:0 but an operation was issued
        on cuda:1", in ddp-doctor's own operations or in a model given with ``--model``.
    Why: Since torch 2.15, ``torch.cuda.set_device`` alone no longer decides: init_process_group uses device_id if set,
        otherwise LOCAL_RANK modulo the number of GPUs, otherwise the global rank modulo that number. A tensor on
        another GPU is refused. Older releases created a communicator for any GPU.
    Remedy: Choose the device by LOCAL_RANK, make it the current one, and pass it to init_process_group as device_id.
    See: torch 2.15 distributed/distributed_c10d.py (init_process_group, device_id)
        https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group
    """
    ranks = list({rank.rank: rank for rank in [*_of_models(recording), *_of_trials(recording)]}.values())
    if not ranks:
        return
    ranks.sort(key=lambda rank: rank.rank)
    everyone = tuple(rank.rank for rank in ranks)
    lines = sorted({rank.where for rank in ranks} - {""})
    yield proved(
        (*culprits(recording, everyone), *(Culprit(kind="file", name=line) for line in lines)),
        _title(recording, ranks),
        (
            Evidence(
                check=rank.check,
                text=f"rank {rank.rank} used {rank.devices.used} in {rank.doing}, but its group is bound to"
                f" {rank.devices.bound}",
            )
            for rank in ranks[:MOST_LINES]
        ),
        _MOVE_TENSOR if all(rank.where for rank in ranks) else ONE_GPU_EACH,
        detail="torch.cuda.set_device() alone does not bind a group to a GPU. Since torch 2.15, device_id does, then"
        " LOCAL_RANK modulo the number of GPUs, then the global rank modulo that number.",
    )


def _of_trials(recording: Recording) -> Iterator[_Rank]:
    for trial in recording.trials:
        for rank in trial.evidence:
            devices = used_elsewhere(rank.raised.message) if rank.raised else None
            if devices is not None:
                last = rank.steps[-1] if rank.steps else None
                check = last.check if last else rank.check or PROCESS_GROUP
                yield _Rank(rank.rank, check, devices, step_words(last), "")


def _of_models(recording: Recording) -> Iterator[_Rank]:
    for raised in (each for feature in run_features(recording) for each in feature.raised(recording)):
        if (devices := used_elsewhere(raised.message)) is not None:
            yield _Rank(raised.rank, raised.check, devices, raised.doing, raised.where)


def _title(recording: Recording, ranks: list[_Rank]) -> str:
    who = names(recording, tuple(rank.rank for rank in ranks))
    pairs = {(rank.devices.used, rank.devices.bound) for rank in ranks}
    if len(pairs) == 1:
        used, bound = pairs.pop()
        its = "its NCCL group is" if len(ranks) == 1 else "their NCCL groups are"
        return f"{who} used {used}, but {its} bound to {bound}"
    each = [f"rank {rank.rank} used {rank.devices.used}, not {rank.devices.bound}" for rank in ranks]
    more = ", and so on" if each[NAMES_IN_A_SENTENCE:] else ""
    return f"{who} used GPUs to which their NCCL groups are not bound: {', '.join(each[:NAMES_IN_A_SENTENCE])}{more}"
