"""Process group: whether the ranks connect, how long that takes, and whether each has its own GPU.

Raw input: none; the facts come from torch on every rank, for example

    rank 0: gloo, init 0.012 s, first all_reduce 0.4 ms, cpu
    rank 1: nccl, built as nccl2, init 1.7 s, first all_reduce 0.2 s, cuda:1, GPU-5d1e…

Why it matters: DistributedDataParallel starts with init_process_group and a collective. NCCL refuses two ranks on one
GPU ("Duplicate GPU detected"), or they share it at half speed. The usual cause is a script that chooses its device by
the global rank, or without any rank.
"""

from collections.abc import Iterator

from ddp_doctor.facts.collectives import ProcessGroupFact, TorchImport
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Consequence, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.rank_identity import gpu_identity
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.remedies.torch_calls import ONE_GPU_EACH
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, proved
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, by_cause, host, node_names, of_nodes
from ddp_doctor.wording.ranks import capital, rank_culprit, rank_list


def probe(ctx: RankContext) -> ProcessGroupFact:
    """Run the first collective and return this rank's backend and device."""
    import os

    import torch
    import torch.distributed as dist

    tensor = torch.ones(1, device=ctx.device)
    started = ctx.clock()
    with ctx.step("all_reduce", "float32 [1]"):
        dist.all_reduce(tensor)
        tensor.item()  # waits for the GPU
    first = ctx.clock() - started
    uuid, name = gpu_identity(ctx.device)
    return ProcessGroupFact(
        backend=dist.get_backend(),
        backend_impl=ctx.backend_impl,
        group_rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        init_s=ctx.init_s,
        first_collective_s=first,
        device=ctx.device,
        bound_device=ctx.bound_device,
        gpu_uuid=uuid,
        gpu_name=name,
        torch_version=torch.__version__,
        cuda_version=torch.version.cuda,
        nccl_available=dist.is_nccl_available(),
        gloo_available=dist.is_gloo_available(),
        pid=os.getpid(),
    )


@rule("DD603", "torch-cannot-be-imported", Consequence.FAILS, TorchImport, explained_by=("DD211",))
def torch_cannot_be_imported(recording: Recording) -> Iterator[Draft]:
    """The import of torch raises an exception or does not end.

    Finds: Reports an import of torch that failed in the job's own interpreter and environment, or that still ran after
        a minute without computing or reading. In that case, the finding shows the line where it is stuck. An import
        that still makes progress after 90 s is slow, and makes the verdict unsure.
    Why: No rank will start.
    Remedy: If a library is missing, repair the installation. If the import does not end, check the shared file system:
        usually it does not respond.
    See: docs/explanation/hangs.md
    """
    for (what, last), group in by_cause(recording.facts(TorchImport), _import_failure).items():
        where = f" on {node_names(recording, group)}" if recording.several_nodes else ""
        checks = list(dict.fromkeys(node.reading.check for node in group))  # all of them failed for this reason
        yield proved(
            of_nodes(recording, group),
            f"torch {what}{where}: {last[:160]}",
            (
                Evidence(check=check, text="another check that needs torch did not run" if number else last[:300])
                for number, check in enumerate(checks)
            ),
            remedy("Make a plain import of torch work first", "python -X importtime -c 'import torch'"),
            detail="No rank was started." if not recording.several_nodes else "No rank was started there.",
            nodes=tuple(node.node for node in group),
        )


def _import_failure(fact: TorchImport) -> tuple[str, str] | None:
    """Return the fault of the import, and the most useful line of its traceback or stack."""
    why = fact.error or fact.stuck_at
    if why is None or fact.moving:
        return None
    lines = [line.strip() for line in why.splitlines() if line.strip()] or ["no words"]
    if fact.error:
        return "cannot be imported", lines[-1]
    frames = [line for line in lines if line.startswith("File ")]
    return f"has not been imported after {fact.import_s:.0f} s", (frames or lines)[0]


@rule("DD605", "two-ranks-share-one-gpu", Consequence.FAILS, ProcessGroupFact)
def two_ranks_share_one_gpu(recording: Recording) -> Iterator[Draft]:
    """Two ranks of one node use the same GPU.

    Finds: Reports ranks whose CUDA devices have the same UUID.
    Why: NCCL refuses it. If a setting hides it, the ranks share one GPU's time and memory.
    Remedy: Use LOCAL_RANK for the device, pass it to init_process_group as device_id, start one rank per GPU, and check
        CUDA_VISIBLE_DEVICES.
    See: NCCL init.cc ("Duplicate GPU detected"); torch.distributed.run, "Definitions"
    """
    by_uuid = grouped(
        ((rank.node, rank.fact.gpu_uuid), rank)
        for rank in recording.facts(ProcessGroupFact)
        if rank.fact.gpu_uuid is not None
    )
    shared = {gpu: sharing for gpu, sharing in by_uuid.items() if len(sharing) > 1}
    if not shared:
        return
    places = []
    for (node, uuid), sharing in shared.items():
        at = f" of {host(recording, node)}" if recording.several_nodes else ""
        who = rank_list([rank.rank or 0 for rank in sharing])
        places.append(f"{who} run on one GPU{at} ({sharing[0].fact.gpu_name}, {uuid})")
    left = len(places) - NAMES_IN_A_SENTENCE
    shown = [*places[:NAMES_IN_A_SENTENCE], *([f"and so on, on {left} GPUs more"] if left > 0 else [])]
    everyone = [rank for sharing in shared.values() for rank in sharing]
    yield proved(
        (rank_culprit(recording, rank.rank or 0, rank.node) for rank in everyone),
        capital("; ".join(shown)),
        (
            Evidence(text=f"rank {rank.rank} uses {rank.fact.device}, {rank.fact.gpu_uuid}")
            for rank in everyone[:LINES_OF_EVIDENCE]
        ),
        ONE_GPU_EACH,
        detail="Each rank needs its own GPU.",
    )


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the startup times of the slowest rank."""
    facts = [rank.fact for rank in recording.facts(ProcessGroupFact)]
    for rank in recording.facts(TorchImport):
        yield Measurement(name="torch_import", value=rank.fact.import_s, unit="s", labels={"node": rank.node})
    if facts:
        labels: dict[str, str | int | float] = {"backend": facts[0].backend, "ranks": len(facts)}
        yield Measurement(name="init_process_group", value=max(f.init_s for f in facts), unit="s", labels=labels)
        first = max(f.first_collective_s for f in facts)
        yield Measurement(name="first_collective", value=first, unit="s", labels=labels)


CHECK = Check(
    id="process_group",
    title="Ranks meet in a process group",
    where=Where.RANK,
    probe=probe,
    facts=(ProcessGroupFact, TorchImport),
    rules=(torch_cannot_be_imported, two_ranks_share_one_gpu),
    cost_s=0.1,
    is_essential=True,
    measurements=measurements,
)
