"""The options of ``ddp-doctor run``."""

from dataclasses import dataclass
from typing import Annotated

from ddp_doctor.cli import complete
from ddp_doctor.cli.help import CHECKS, COLLECTIVES, FAULTS, MODEL, NODES, VERDICT
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
    """The options of run except outputs. Torchrun's options keep their names, meanings and PET_* variables."""

    nnodes: Annotated[
        str,
        option(
            NODES,
            "N|MIN:MAX",
            "Number of nodes, or a range. [default: all nodes of the SLURM, mpirun or torchrun job, or 1]",
            env="PET_NNODES",
        ),
    ] = ""
    nproc_per_node: NprocOption = "auto"
    node_rank: Annotated[
        int | None, option(NODES, "R", "Rank of this node (0 for the head node).", env="PET_NODE_RANK")
    ] = None
    rdzv_endpoint: Annotated[
        str,
        option(
            NODES,
            "HOST[:PORT]",
            "Rendezvous endpoint: the head node and a free port on it. [default port: 29400]",
            env="PET_RDZV_ENDPOINT",
        ),
    ] = ""
    master_addr: Annotated[
        str, option(NODES, "HOST", "Address of the head node, as for torchrun.", env="PET_MASTER_ADDR")
    ] = ""
    master_port: Annotated[
        int | None, option(NODES, "PORT", "Port of the head node. [default: 29500]", env="PET_MASTER_PORT")
    ] = None
    hosts: HostsOption = None
    hostfile: HostfileOption = None
    join_timeout: Annotated[float, option(NODES, "SECONDS", "Maximum time for all nodes to join.", min=1.0)] = 60.0
    backend: Annotated[
        Backend, option(NODES, None, "Backend to test: auto is NCCL with GPUs and gloo without GPUs.")
    ] = Backend.AUTO
    level: Annotated[Level, option(CHECKS, None, "Amount of testing.")] = Level.STANDARD
    only: Annotated[
        list[str] | None,
        option(
            CHECKS,
            "CHECKS",
            "Run only these checks, for example p2p,allreduce. Repeatable.",
            completed=complete.names_of_checks,
        ),
    ] = None
    skip: SkipOption = None
    budget: Annotated[float, option(CHECKS, "SECONDS", "Time budget for the checks.", min=1.0)] = 60.0
    collective: Annotated[
        list[str] | None,
        option(
            COLLECTIVES,
            "NAMES",
            "Also measure these collectives by size, for example all_gather,reduce_scatter, and print a table in"
            " nccl-tests format. Repeatable.",
            completed=complete.collectives,
        ),
    ] = None
    sizes: Annotated[str, option(COLLECTIVES, "FROM:TO:FACTOR", "Collective sizes in bytes, for example 8:1G:4.")] = ""
    iters: Annotated[int | None, option(COLLECTIVES, "N", "Timed calls per size.", min=1)] = None
    warmup: Annotated[int | None, option(COLLECTIVES, "N", "Warm-up calls per size.", min=0)] = None
    min_busbw: Annotated[
        list[str] | None,
        option(
            COLLECTIVES,
            "COLLECTIVE:SIZE=RATE",
            "Fail if the bus bandwidth is below RATE, for example all_reduce:1G=180GB/s. Repeatable.",
        ),
    ] = None
    mesh: Annotated[
        str | None,
        option(
            COLLECTIVES,
            "NAME=N,...",
            "Test your job's device mesh, for example dp=2,shard=4, with the outermost axis first.",
        ),
    ] = None
    collectives_of: Annotated[
        str | None,
        option(
            COLLECTIVES,
            "DUMP",
            "Repeat a job's collectives, read from a flight recorder dump or a directory of all ranks' dumps.",
        ),
    ] = None
    prove: Annotated[
        bool,
        option(
            CHECKS,
            None,
            "Run tests with and without each recommended setting to see if it helps.",
            "--prove/--no-prove",
        ),
    ] = True
    model: Annotated[
        str,
        option(
            MODEL, "MODULE:FACTORY", "Also run your own model, created by this factory, for example train.models:make."
        ),
    ] = ""
    from_trace: Annotated[
        str, option(MODEL, "REPORT", "Test the recommendations in a `trace --json` report. Requires --model.")
    ] = ""
    compiled: Annotated[
        bool,
        option(
            MODEL,
            None,
            "Compile your model (--model) with torch.compile on each rank and report problems.",
            "--compile",
        ),
    ] = False
    data: Annotated[str, option(MODEL, "PATH", "Measure how fast each rank reads this data file or directory.")] = ""
    isolate: Annotated[
        bool,
        option(FAULTS, None, "Find the faulty nodes by testing successively smaller groups of nodes.", "--isolate"),
    ] = False
    topology: Annotated[
        str | None,
        option(
            FAULTS,
            "FILE",
            "File with leaf switches or racks for --isolate: SLURM's topology.conf or topology.yaml, or NAME: HOSTS"
            " lines.",
        ),
    ] = None
    repeat: Annotated[
        int, option(FAULTS, "N", "Run the rank tests (or each --isolate group) N times, without a time limit.", min=1)
    ] = 1
    soak: Annotated[
        float | None,
        option(
            FAULTS, "MINUTES", "Repeat the rank tests for this many minutes, in addition to the --budget time.", min=0.0
        ),
    ] = None
    plan: Annotated[
        bool,
        option(CHECKS, None, "Print the planned checks, their nodes and durations, without running them.", "--plan"),
    ] = False
    require_gpus: Annotated[
        int | None, option(VERDICT, "N", "Fail if the job can use fewer than N GPUs on any node.", min=0)
    ] = None
    baseline: Annotated[
        str | None,
        option(VERDICT, "FILE", "Compare the measurements with a baseline written by fleet --write-baseline."),
    ] = None
    fail_on: FailOnOption = FailOn.ERROR
    ignore: IgnoreOption = None
