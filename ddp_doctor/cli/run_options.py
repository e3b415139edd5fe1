"""The options of ``ddp-doctor run``, as they are typed."""

from dataclasses import dataclass
from typing import Annotated

from ddp_doctor.cli import complete
from ddp_doctor.cli.help import TIME, VERDICT, WHAT, WHERE
from ddp_doctor.cli.options import (
    FailOnOption,
    HostfileOption,
    HostsOption,
    IgnoreOption,
    NprocOption,
    SkipOption,
    option,
)
from ddp_doctor.model.choices import Backend, FailOn, Level


@dataclass(frozen=True)
class RunOptions:
    """One field for each option but those of outputs; torchrun's own have its names, meanings and PET_* variables."""

    nnodes: Annotated[
        str,
        option(
            WHERE,
            "N|MIN:MAX",
            "Nodes, at most MAX; by default all that SLURM, mpirun or torchrun has, else this one.",
            env="PET_NNODES",
        ),
    ] = ""
    nproc_per_node: NprocOption = "auto"
    node_rank: Annotated[
        int | None, option(WHERE, "R", "This node's number; the head's is 0.", env="PET_NODE_RANK")
    ] = None
    rdzv_endpoint: Annotated[
        str,
        option(
            WHERE,
            "HOST[:PORT]",
            "Where the nodes meet: the head and a free port of it (29400).",
            env="PET_RDZV_ENDPOINT",
        ),
    ] = ""
    master_addr: Annotated[str, option(WHERE, "HOST", "The head, as torchrun names it.", env="PET_MASTER_ADDR")] = ""
    master_port: Annotated[int | None, option(WHERE, "PORT", "The head's port (29500).", env="PET_MASTER_PORT")] = None
    hosts: HostsOption = None
    hostfile: HostfileOption = None
    join_timeout: Annotated[float, option(TIME, "SECONDS", "Time for all nodes to report in.", min=1.0)] = 60.0
    backend: Annotated[Backend, option(WHERE, None, "auto is NCCL where there are GPUs, else gloo.")] = Backend.AUTO
    level: Annotated[Level, option(WHAT, None, "How much to test.")] = Level.STANDARD
    only: Annotated[
        list[str] | None,
        option(
            WHAT, "CHECKS", "Run only these checks: p2p,allreduce (repeatable).", completed=complete.names_of_checks
        ),
    ] = None
    skip: SkipOption = None
    budget: Annotated[float, option(TIME, "SECONDS", "Time for the checks.", min=1.0)] = 60.0
    collective: Annotated[
        list[str] | None,
        option(
            WHAT,
            "NAMES",
            "Test these collectives, too, over sizes and as nccl-tests prints it: all_gather,reduce_scatter"
            " (repeatable).",
            completed=complete.collectives,
        ),
    ] = None
    sizes: Annotated[str, option(WHAT, "FROM:TO:FACTOR", "Sizes of collectives, as 8:1G:4.")] = ""
    iters: Annotated[int | None, option(WHAT, "N", "Timed calls of each size.", min=1)] = None
    warmup: Annotated[int | None, option(WHAT, "N", "Calls of each size before that.", min=0)] = None
    min_busbw: Annotated[
        list[str] | None,
        option(VERDICT, "COLLECTIVE:SIZE=RATE", "Require this bus bandwidth: all_reduce:1G=180GB/s (repeatable)."),
    ] = None
    mesh: Annotated[
        str | None,
        option(
            WHAT,
            "NAME=N,...",
            "Test the mesh of your job, the outermost axis first, as init_device_mesh takes it: dp=2,shard=4.",
        ),
    ] = None
    prove: Annotated[
        bool, option(WHAT, None, "Try the recommended settings, with and without them.", "--prove/--no-prove")
    ] = True
    model: Annotated[
        str,
        option(
            WHAT,
            "MODULE:FACTORY",
            "A model of yours to test as well: what FACTORY() of MODULE returns is the model, (model, make_batch)"
            " or a dict with model, make_batch(step), loss(output, batch) and ddp, the options of DDP."
            " Your code runs on the ranks.",
        ),
    ] = ""
    from_trace: Annotated[
        str, option(WHAT, "REPORT", "Try what a report of `trace --json` advises, with the model of --model.")
    ] = ""
    compiled: Annotated[
        bool, option(WHAT, None, "Look at what torch.compile makes of the model of --model on each rank.", "--compile")
    ] = False
    collectives_of: Annotated[
        str | None,
        option(
            WHAT, "DUMP", "Run a job's collectives again: a dump of the flight recorder, or a folder of all ranks'."
        ),
    ] = None
    isolate: Annotated[
        bool, option(WHAT, None, "Find the nodes to blame: test groups of nodes, ever smaller ones.", "--isolate")
    ] = False
    topology: Annotated[
        str | None,
        option(WHERE, "FILE", "Leaf switches or racks: topology.conf or .yaml of SLURM, or lines of NAME: HOSTS."),
    ] = None
    repeat: Annotated[
        int,
        option(
            WHAT,
            "N",
            "Test all ranks, or with --isolate each group, so often, however long that takes, and tell how many fail.",
            min=1,
        ),
    ] = 1
    soak: Annotated[
        float | None, option(TIME, "MINUTES", "Test all ranks again and again for so long, besides --budget.", min=0.0)
    ] = None
    data: Annotated[
        str, option(WHAT, "PATH", "A file or folder that the job reads: how fast every rank reads it, too.")
    ] = ""
    plan: Annotated[
        bool,
        option(WHAT, None, "Print what would be tested, on which nodes and in what time; start nothing.", "--plan"),
    ] = False
    require_gpus: Annotated[
        int | None, option(VERDICT, "N", "Require that the job may use at least N GPUs.", min=0)
    ] = None
    baseline: Annotated[
        str | None,
        option(VERDICT, "FILE", "Hold what is measured against healthy runs: a file of fleet --write-baseline."),
    ] = None
    fail_on: FailOnOption = FailOn.ERROR
    ignore: IgnoreOption = None
