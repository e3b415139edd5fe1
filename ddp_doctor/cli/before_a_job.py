"""The commands for the time before a job; each imports its code when it is called."""

from typing import Annotated

import typer

from ddp_doctor.cli.help import INPUT, VERDICT
from ddp_doctor.cli.options import FailOnOption, IgnoreOption, NodeGpusOption, SkipOption, command, option
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.cli.run_options import RunOptions
from ddp_doctor.model.choices import FailOn, Level


@command(
    "ddp-doctor run",
    "ddp-doctor run --hosts node1,node2 --html report.html",
    "ddp-doctor run --only p2p,allreduce",
    "srun --ntasks-per-node=1 ddp-doctor run",
    token_normalize_func=lambda name: name.replace("_", "-"),  # torchrun takes both spellings
)
def run(typed: RunOptions, *, outputs: Outputs) -> int:
    """Test the nodes with real ranks; report faults, their cause and how to fix them."""
    from ddp_doctor.cli.run import run

    return run(typed, outputs)


@command("ddp-doctor prolog", "ddp-doctor prolog --require-gpus 8 --unsure fail")
def prolog(
    skip: SkipOption = None,
    require_gpus: NodeGpusOption = None,
    unsure: Annotated[
        str, option(VERDICT, "pass|fail", "Exit code for an unsure verdict: pass (0) or fail (3).")
    ] = "pass",
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Check one node without ranks or torch, for the SLURM prolog."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored, names
    from ddp_doctor.model.recording import Options

    options = Options(
        command="prolog", level=Level.QUICK, skip=names(skip), ignore=ignored(ignore), require_gpus=require_gpus
    )
    return commands.prolog(options, unsure=unsure, outputs=outputs)


@command("ddp-doctor topology", "nvidia-smi topo -m | ddp-doctor topology - --svg node.svg")
def topology(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|-]",
            help="Output of `nvidia-smi` (topo -m, topo -p2p or nvlink -s), or NCCL's topology XML. [default: this"
            " machine]",
        ),
    ] = None,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Read a GPU topology and show which paths NCCL will use."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored

    return commands.topology(file, outputs, ignored(ignore))


@command("ddp-doctor env", "ddp-doctor env --from job.sbatch")
def env(
    source: Annotated[
        str | None,
        option(
            INPUT,
            "FILE|-",
            "Read saved `env` output, a job script, a Dockerfile or a Kubernetes manifest. [default: this machine]",
            "--from",
        ),
    ] = None,
    fail_on: FailOnOption = FailOn.ERROR,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Show NCCL, torch and gloo settings, their origin and errors."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored

    return commands.env(source, outputs, ignored(ignore), fail_on)
