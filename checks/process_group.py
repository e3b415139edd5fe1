"""Process group: can the ranks meet, how long does it take, and does each have a GPU of its own?

Raw input: none; the facts come from torch on every rank, e.g.

    rank 0: gloo, init 0.012 s, first all_reduce 0.4 ms, cpu
    rank 1: nccl, init 0.031 s, first all_reduce 1.9 s, cuda:1, GPU-5d1e…

DistributedDataParallel starts with init_process_group and a collective. Two ranks on one GPU are
refused by NCCL ("Duplicate GPU detected"), or share it at half speed; it is mostly a script that
uses the global rank, or no rank at all, for its device.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import ClassVar

from ddp_doctor.knowledge.deadlines import CHECK_S, FIRST_NCCL_S
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording, Seen
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule


class ProcessGroupFact(Fact):
    """One rank's place in the process group."""

    KIND: ClassVar[str] = "process-group/1"

    backend: str
    group_rank: int
    world_size: int
    init_s: float  # init_process_group
    first_collective_s: float  # creates the communicator on NCCL
    device: str
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    torch_version: str
    cuda_version: str | None = None
    nccl_available: bool
    gloo_available: bool
    pid: int


class TorchImport(Fact):
    """The import of torch, once per node. ``error`` is a traceback, ``stuck_at`` a Python stack."""

    KIND: ClassVar[str] = "torch-import/1"

    import_s: float
    error: str | None = None
    stuck_at: str | None = None


def probe(ctx: RankContext) -> ProcessGroupFact:
    """Run the first collective and say where this rank ended up."""
    import os

    import torch
    import torch.distributed as dist

    tensor = torch.ones(1, device=ctx.device)
    started = ctx.clock()
    with ctx.step("all_reduce", "float32 [1]", deadline_s=FIRST_NCCL_S if ctx.backend == "nccl" else None):
        dist.all_reduce(tensor)
        tensor.item()  # waits for the GPU
    first = ctx.clock() - started
    uuid, name = _gpu(ctx.device)
    return ProcessGroupFact(
        backend=dist.get_backend(),
        group_rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        init_s=ctx.init_s,
        first_collective_s=first,
        device=ctx.device,
        gpu_uuid=uuid,
        gpu_name=name,
        torch_version=torch.__version__,
        cuda_version=torch.version.cuda,
        nccl_available=dist.is_nccl_available(),
        gloo_available=dist.is_gloo_available(),
        pid=os.getpid(),
    )


def _gpu(device: str) -> tuple[str | None, str | None]:
    """UUID and name of a CUDA device; the UUID is None on torch older than 2.4."""
    if not device.startswith("cuda"):
        return None, None
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    return (f"GPU-{uuid}" if uuid is not None else None), properties.name


@rule("DD603", "torch-cannot-be-imported", Severity.ERROR, TorchImport)
def cannot_import(recording: Recording) -> Iterator[Draft]:
    """A torch whose import raises, or does not end.

    What it finds
        The import of torch failed in the job's own interpreter and environment, or still ran after
        a minute; then the line on which it stands is shown.

    Why it matters
        No rank will start.

    Remedy
        A missing library: repair the installation. An import that does not end: mostly a shared
        file system that does not answer.

    References
        docs/explanation/hangs.md
    """
    for seen in recording.facts(TorchImport):
        why = seen.fact.error or seen.fact.stuck_at
        if why is None:
            continue
        lines = [line.strip() for line in why.splitlines() if line.strip()] or ["no words"]
        frames = [line for line in lines if line.startswith("File ")]
        last = lines[-1] if seen.fact.error else (frames or lines)[0]
        what = (
            "cannot be imported" if seen.fact.error else f"is not imported after {seen.fact.import_s:.0f} s"
        )
        host = recording.world.hostname(seen.node) if recording.world else None
        yield Draft(
            title=f"torch {what}: {last[:160]}",
            detail="No rank was started.",
            confidence=Confidence.PROVED,
            culprits=(Culprit(kind="node", node=host, node_rank=seen.node),),
            evidence=tuple(
                Evidence(check=reading.check, text=last[:300])
                for reading in recording.readings
                if reading.fact == seen.reading.fact
            ),
            remedies=(
                Remedy(
                    summary="Make this command work first",
                    commands=("python -X importtime -c 'import torch'",),
                    scope="node",
                ),
            ),
        )
        return  # the other checks failed for the same reason


@rule("DD605", "two-ranks-share-one-gpu", Severity.ERROR, ProcessGroupFact)
def shared_gpu(recording: Recording) -> Iterator[Draft]:
    """Two ranks of one node on one GPU.

    What it finds
        Ranks whose CUDA device has the same UUID.

    Why it matters
        NCCL refuses it, and where a setting hides it the ranks share one GPU's time and memory.

    Remedy
        Use LOCAL_RANK for the device, start one rank per GPU, and look at CUDA_VISIBLE_DEVICES.

    References
        NCCL init.cc ("Duplicate GPU detected"); torch.distributed.run, "Definitions"
    """
    by_uuid: dict[tuple[int, str], list[Seen[ProcessGroupFact]]] = defaultdict(list)
    for seen in recording.facts(ProcessGroupFact):
        if seen.fact.gpu_uuid is not None:
            by_uuid[seen.node, seen.fact.gpu_uuid].append(seen)
    for (node, uuid), sharing in by_uuid.items():
        if len(sharing) < 2:
            continue
        ranks = [seen.rank or 0 for seen in sharing]
        host = recording.world.hostname(node) if recording.world else None
        named = " and ".join(str(rank) for rank in ranks)
        yield Draft(
            title=f"Ranks {named} run on one GPU ({sharing[0].fact.gpu_name}, {uuid})",
            detail="Each rank needs a GPU of its own.",
            confidence=Confidence.PROVED,
            culprits=tuple(Culprit(kind="rank", rank=rank, node=host, node_rank=node) for rank in ranks),
            evidence=tuple(
                Evidence(check="process_group", text=f"rank {seen.rank} uses {seen.fact.device}, {uuid}")
                for seen in sharing
            ),
            remedies=(
                Remedy(
                    summary="Start as many ranks as there are GPUs, and choose the device by LOCAL_RANK",
                    commands=("torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",),
                    scope="code",
                ),
            ),
        )


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Start-up times of the slowest rank."""
    facts = [seen.fact for seen in recording.facts(ProcessGroupFact)]
    for seen in recording.facts(TorchImport):
        yield Measurement(name="torch_import", value=seen.fact.import_s, unit="s", labels={"node": seen.node})
    if facts:
        labels: dict[str, str | int | float] = {"backend": facts[0].backend, "ranks": len(facts)}
        yield Measurement(
            name="init_process_group", value=max(f.init_s for f in facts), unit="s", labels=labels
        )
        first = max(f.first_collective_s for f in facts)
        yield Measurement(name="first_collective", value=first, unit="s", labels=labels)


CHECK = Check(
    id="process_group",
    title="Ranks meet in a process group",
    where=Where.RANK,
    probe=probe,
    facts=(ProcessGroupFact, TorchImport),
    rules=(cannot_import, shared_gpu),
    cost_s=0.1,
    deadline_s=CHECK_S,
    measurements=measurements,
)
