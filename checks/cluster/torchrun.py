"""torchrun: whether every rank starts under the real launcher, and which variables it exports.

Raw input: the environment of each rank that torchrun started, for example::

    RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=41733
    OMP_NUM_THREADS=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TORCHELASTIC_RUN_ID=none

Why it matters: jobs start this way. A rank that never arrives keeps the rendezvous waiting for ten minutes. The
launcher chooses MASTER_PORT, which a firewall may block.
"""

import math
import re
from collections.abc import Iterator

from ddp_doctor.facts.cluster import TorchrunFact
from ddp_doctor.knowledge.deadlines import CHECK_S
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Consequence, Level, Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.remedies.torch_calls import DOCS
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.ranks import rank_at, rank_culprit

#: How long the rendezvous waits for a node by default, in seconds.
JOIN_TIMEOUT_S = 600
#: The recommended timeout, as a multiple of a slow start.
_ROOM = 3
#: Variables that torchrun sets (torch/distributed/elastic/agent/server/local_elastic_agent.py).
EXPORTED = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_MAX_RESTARTS",
)
#: torchrun took 2.4 s for two ranks on the test machine, and tens of seconds on a cold file system.
SLOW_START_S = 60.0
#: torchrun's messages about a rank that a signal ended: "exitcode: -9", "Signal 15 (SIGTERM) received".
_OUR_SIGNALS = re.compile(r"SIGTERM|SIGKILL|exitcode\s*: -(9|15)\b")
#: The first failure in the summary of torch.distributed.elastic.multiprocessing.errors, if a signal ended that rank.
_FIRST_KILLED = re.compile(
    r"Root Cause.{1,300}?\s+rank\s+: (?P<rank>\d{1,6}) \(local_rank: \d{1,4}\)"
    r"\s+exitcode\s+: -(?P<code>\d{1,3}) \(pid: \d{1,10}\)\s+\((?P<signal>SIG[A-Z0-9]{2,9})\)",
    re.DOTALL,
)


def probe(ctx: RankContext) -> TorchrunFact:
    """Run one all-reduce in the process group from torchrun's own environment."""
    import torch
    import torch.distributed as dist

    tensor = torch.full((1,), float(ctx.group_rank + 1), device=ctx.device)
    with ctx.step("all_reduce", "float32 [1]"):
        dist.all_reduce(tensor)
        total = float(tensor.item())
    world = ctx.world_size
    return TorchrunFact(
        exported={name: ctx.env[name] for name in EXPORTED if name in ctx.env},
        arrived_after_s=ctx.started_ago_s,
        init_s=ctx.init_s,
        all_reduce_right=total == world * (world + 1) / 2,
    )


@rule(
    "DD501",
    "torchrun-does-not-bring-all-ranks-up",
    Consequence.FAILS,
    explained_by=("DD211", "DD223", "DD240", "DD603"),
)
def torchrun_does_not_bring_all_ranks_up(recording: Recording) -> Iterator[Draft]:
    """torchrun exited, or was stopped, before any rank started.

    Finds: Reports a failure of the launcher itself: none of its ranks wrote any output. If torchrun's output shows that
        a signal killed a rank first, that rank is reported.
    Why: The job will not start under torchrun on this node.
    Remedy: Read torchrun's own output, which the finding contains.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    for trial in recording.trials:
        silent = trial.launcher == "torchrun" and not any(rank.began for rank in trial.evidence)
        killed = _FIRST_KILLED.search(trial.notes[1]) if silent and trial.notes[1:] else None
        if killed and trial.outcome in ("stuck", "broken"):
            rank, signal = int(killed["rank"]), killed["signal"]
            yield proved(
                (rank_culprit(recording, rank),) if recording.nnodes == 1 else NOBODY,
                f"Rank {rank} was killed by {signal} right after torchrun started it",
                Evidence(text=f"torchrun's first failure: rank {rank}, exit code -{killed['code']} ({signal})"),
                remedy(
                    "Find out what sent the signal: the out-of-memory killer, a time limit or an administrator",
                    "sudo dmesg -T | grep -i 'killed process'",
                ),
                detail="Then torchrun ended the other ranks. None had run its first line.",
            )
        elif silent and trial.outcome in ("stuck", "broken"):
            last = [line for line in (trial.notes[1] if trial.notes[1:] else "").splitlines() if line.strip()]
            yield likely(
                NOBODY,
                f"torchrun started none of its {len(trial.ranks)} ranks within {trial.waited_s:.0f} s",
                (Evidence(text=line[:200]) for line in last[-3:] or trial.notes[:1]),
                _by_hand(recording),
                detail=": ".join((*trial.notes[:1], *last[-1:])),
            )


def _by_hand(recording: Recording) -> Remedy:
    ranks = recording.world.nproc_per_node if recording.world else 1
    return remedy(
        "Run torchrun by hand and fix the reported error", f"torchrun --nproc-per-node {ranks} --no-python hostname"
    )


@rule("DD502", "torchrun-starts-slowly", Consequence.COST, TorchrunFact)
def torchrun_starts_slowly(recording: Recording) -> Iterator[Draft]:
    """torchrun takes a long time to start the ranks.

    Finds: Reports more than a minute from the start of torchrun until the last rank ran its first line.
    Why: The delay occurs at every start and restart, and may exceed timeouts of the rendezvous.
    Remedy: Move the Python environment to a local disk or an image; the usual cause is a shared file system. If the
        start takes half of the rendezvous's ten minutes, extend them: --rdzv-conf join_timeout.
    See: docs/explanation/hangs.md
    """
    slowest = max(recording.facts(TorchrunFact), key=lambda node: node.fact.arrived_after_s)
    seconds = slowest.fact.arrived_after_s
    # A longer limit, so the rendezvous also waits for nodes that start slowly.
    room_s = max(JOIN_TIMEOUT_S, math.ceil(_ROOM * seconds / 60) * 60)
    join_later = remedy(
        f"Raise the rendezvous timeout from {JOIN_TIMEOUT_S} s to {room_s} s (workaround)",
        f"torchrun --rdzv-conf join_timeout={room_s} SCRIPT",
        scope="job",
        cost="later detection of a missing node",
        undo="remove the option",
        untried="the file system takes the time, and a timeout does not save it",
        references=(DOCS + "elastic/run.html",),
    )
    if seconds > SLOW_START_S:
        yield likely(
            NOBODY,
            f"torchrun took {seconds:.0f} s to get {rank_at(recording, slowest.rank or 0)} running",
            Evidence(
                text=f"arrival of the last rank, {slowest.rank}",
                value=round(seconds, 1),
                unit="s",
                expected=SLOW_START_S,
                expected_from="limit of this check; 2.4 s measured for two ranks on a local disk",
            ),
            remedy("Keep the Python environment on a local disk or in a container image", scope="job"),
            *([join_later] if seconds * 2 > JOIN_TIMEOUT_S else []),
            detail="Each rank starts Python and imports torch, which takes the time.",
        )


@rule("DD503", "torchrun-does-not-end", Consequence.RISK)
def torchrun_does_not_end(recording: Recording) -> Iterator[Draft]:
    """torchrun fails, or does not exit, after all its ranks finished their work.

    Finds: Reports a torchrun that ended with an exit code other than 0 (an error), or was still running ten seconds
        later (a warning), although all ranks finished and exited. Not reported if torchrun complains of SIGTERM or
        SIGKILL: ddp-doctor itself ends ranks that are done.
    Why: The scheduler counts a successful job as failed, or keeps its GPUs allocated.
    Remedy: Read torchrun's own output, which the finding contains.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    for trial in recording.trials:
        note, output = (*trial.notes, "", "")[:2]
        failed = note.startswith("torchrun ended with exit code")
        stayed = note.startswith("torchrun did not end by itself")
        if trial.launcher != "torchrun" or trial.outcome != "finished" or not (failed or stayed):
            continue
        if _OUR_SIGNALS.search(output):
            continue
        last = [line.strip() for line in output.splitlines() if line.strip()][-3:]
        what = (
            note.replace("ended with exit code", "exited with code")
            if failed
            else f"torchrun was still running {CHECK_S:.0f} s"
        )
        yield likely(
            NOBODY,
            f"{what} after all {len(trial.ranks)} ranks had finished",
            (Evidence(text=line[:200]) for line in last or [note]),
            _by_hand(recording),
            detail=" ".join(("The ranks themselves report no error.", *last[-1:])),
            severity=Severity.ERROR if failed else None,
        )


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the time until the last rank had its process group under torchrun."""
    facts = [node.fact for node in recording.facts(TorchrunFact)]
    if facts:
        slowest = max(fact.arrived_after_s + fact.init_s for fact in facts)
        yield Measurement(name="torchrun_start", value=slowest, unit="s", labels={"ranks": len(facts)})


CHECK = Check(
    id="torchrun",
    title="torchrun brings all ranks up",
    where=Where.LAUNCHER,
    probe=probe,
    facts=(TorchrunFact,),
    rules=(torchrun_does_not_bring_all_ranks_up, torchrun_starts_slowly, torchrun_does_not_end),
    level=Level.STANDARD,
    cost_s=3.0,
    deadline_s=10.0,
    measurements=measurements,
)
