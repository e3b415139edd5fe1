"""Exchange a checked pattern with one peer."""

from statistics import median
from typing import TYPE_CHECKING

from ddp_doctor.facts.collectives import PairResult
from ddp_doctor.knowledge.ddp.payload import CROWD
from ddp_doctor.knowledge.deadlines import FIRST_NCCL_S, PAIR_S
from ddp_doctor.knowledge.network.path_quality import JUDGED_MESSAGE_BYTES, LONG_EXCHANGE_S
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import Context, RankContext
from ddp_doctor.probing.kernel_files import text_of

if TYPE_CHECKING:
    import torch

_MIB = 1 << 20
_TASKS = "/proc/self/task"


def size_of_message(ctx: RankContext) -> int:
    """Return the bytes each way; fewer in a large world, whose pairs share the processors and the check's deadline.

    Both ends must choose the same, whatever memory their GPUs have free: four such tensors fit within
    knowledge/gpu/gpu_speed.py.
    """
    few = ctx.world_size > CROWD
    if ctx.device.startswith("cuda"):
        return 16 * _MIB if few or ctx.level is Level.QUICK else 64 * _MIB
    if few:
        return 64 * 1024
    return {Level.QUICK: _MIB, Level.STANDARD: 4 * _MIB, Level.THOROUGH: 16 * _MIB}[ctx.level]


def exchange(ctx: RankContext, peer: int, original: int, size: int) -> PairResult:
    """Swap ``size`` bytes with group rank ``peer`` (original rank ``original``), then send each way separately."""
    import torch

    deadline_s = deadline_of_pair(ctx)
    sent = pattern(ctx.rank, size, ctx.device)
    received = torch.zeros_like(sent)
    with ctx.step("send_recv", f"uint8 [{size}]", peers=(original,), deadline_s=deadline_s):
        first = timed(ctx, sent, received, peer)
        wrong = int((received != pattern(original, size, ctx.device)).sum().item())
        small, answer = torch.full((1,), first, device=ctx.device), torch.zeros(1, device=ctx.device)
        latency = median(timed(ctx, small, answer, peer) for _ in range(1 if ctx.world_size > CROWD else 5))
        # Both ranks know both times, so they repeat equally often, and send only a part if the full size takes long.
        is_long = max(small.item(), answer.item()) > LONG_EXCHANGE_S
        times, ways = (0, 1) if is_long else _repetitions(ctx)
        part = min(size, max(size // 4, JUDGED_MESSAGE_BYTES)) if is_long else size
        both = min([first, *(timed(ctx, sent, received, peer) for _ in range(times))])
        coming, machine = [], ctx.machine(deadline_s)
        began, queued = ctx.clock(), queued_s(machine)
        for receiver in sorted((ctx.group_rank, peer)) * ways:
            if receiver == ctx.group_rank:
                coming.append(part / timed_receipt(ctx, received[:part], small, peer) / 1e9)
            else:
                send_when_told(sent[:part], answer, peer)
        queued_share = (queued_s(machine) - queued) / max(ctx.clock() - began, 1e-9)
    return PairResult(
        peer=original,
        wrong_bytes=wrong,
        latency_us=latency * 1e6,
        bandwidth_gb_per_s=size / both / 1e9,
        size_bytes=size,
        received_gb_per_s=max(coming),
        least_gb_per_s=min(coming),
        queued_share=round(queued_share, 3),
    )


def queued_s(machine: Context) -> float:
    """Return the seconds that the threads of this process were ready to run but had no processor.

    proc(5) schedstat of a thread holds "4711000 123000 42": time on a processor and time ready to run, in ns, and the
    number of time slices. Kernels without the file count nothing.
    """
    counts = ((text_of(machine, f"{_TASKS}/{task}/schedstat") or "").split() for task in machine.listdir(_TASKS))
    return sum(int(words[1]) for words in counts if len(words) == 3) / 1e9


def _repetitions(ctx: RankContext) -> tuple[int, int]:
    """Return the repetitions of the exchange, and of the transfer each way."""
    if ctx.device.startswith("cuda"):  # the first exchange has already connected the pair
        return (1, 1) if ctx.world_size > CROWD else (2 if ctx.level is Level.QUICK else 4, 2)
    if ctx.world_size > CROWD:
        return 0, 1
    return {Level.QUICK: (1, 3), Level.STANDARD: (2, 3), Level.THOROUGH: (4, 3)}[ctx.level]


def better(one: PairResult, other: PairResult) -> PairResult:
    """Return the better values of two measurements of a pair: noise makes them only worse."""
    return one.model_copy(
        update={
            "wrong_bytes": max(one.wrong_bytes, other.wrong_bytes),
            "latency_us": min(one.latency_us, other.latency_us),
            "bandwidth_gb_per_s": max(one.bandwidth_gb_per_s, other.bandwidth_gb_per_s),
            "received_gb_per_s": max(one.received_gb_per_s or 0.0, other.received_gb_per_s or 0.0),
            "least_gb_per_s": min(one.least_gb_per_s or 0.0, other.least_gb_per_s or 0.0),
            "measured_again": True,
            "queued_share": max(one, other, key=lambda each: each.received_gb_per_s or 0.0).queued_share,
        }
    )


def exchange_rate(ctx: RankContext, peer: int, original: int, size: int) -> float:
    """Return the better of two exchanges of unchecked bytes, in GB/s each way."""
    import torch

    sent = torch.zeros(size, dtype=torch.uint8, device=ctx.device)
    received = torch.zeros_like(sent)
    with ctx.step("send_recv", f"uint8 [{size}]", peers=(original,), deadline_s=deadline_of_pair(ctx)):
        return size / min(timed(ctx, sent, received, peer) for _ in range(2)) / 1e9


def deadline_of_pair(ctx: RankContext) -> float:
    """Return the time limit of a pair in seconds, which includes the wait for a late peer.

    A peer may still be in its earlier pairs, and for longer on a crowded machine. The check's deadline grows with the
    ranks per core, and so does a quarter of its remaining time.
    """
    # At its first transfer, NCCL connects two ranks in the group's existing communicator.
    least = FIRST_NCCL_S if ctx.backend == "nccl" else PAIR_S
    return min(max(least, ctx.remaining() / 4), max(ctx.remaining(), 1.0))


def pattern(rank: int, size: int, device: str) -> "torch.Tensor":
    """Return bytes that differ by sender and position, to detect a shifted or stale block."""
    import torch

    block = (torch.arange(65521, dtype=torch.int32) * (2 * rank + 3) + rank).to(torch.uint8)
    return block.repeat(size // len(block) + 1)[:size].to(device)


def move(*transfers: tuple[str, "torch.Tensor", int]) -> None:
    """Run point-to-point operations at once, in the group's existing communicator."""
    import torch.distributed as dist

    operations = [dist.P2POp(getattr(dist, name), tensor, peer) for name, tensor, peer in transfers]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def timed_receipt(ctx: RankContext, received: "torch.Tensor", sign: "torch.Tensor", peer: int) -> float:
    """Return the seconds from the signal to send until all data arrived. Earlier data would wait in kernel buffers."""
    started = ctx.clock()
    move(("isend", sign, peer))
    move(("irecv", received, peer))
    received[0].item()
    took = ctx.clock() - started
    move(("isend", sign, peer))
    return took


def send_when_told(sent: "torch.Tensor", sign: "torch.Tensor", peer: int) -> None:
    """Send on the peer's signal (see ``timed_receipt``); wait until it has all data, so that nothing queues."""
    move(("irecv", sign, peer))
    sign.item()
    move(("isend", sent, peer))
    move(("irecv", sign, peer))
    sign.item()


def timed(ctx: RankContext, sent: "torch.Tensor", received: "torch.Tensor", peer: int) -> float:
    """Return the seconds of one exchange until the data is there; on a GPU, ``wait`` returns earlier."""
    started = ctx.clock()
    move(("isend", sent, peer), ("irecv", received, peer))
    received[0].item()
    return ctx.clock() - started
