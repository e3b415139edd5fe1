"""Commands for the time before a job, with their options and help. What they do is imported when they are called."""

from typing import Annotated, Literal

import typer

from ddp_doctor.cli.complete import strategies
from ddp_doctor.cli.help import FITS, OUTPUTS, VERDICT, WHAT, WHERE
from ddp_doctor.cli.options import FailOnOption, IgnoreOption, NodeGpusOption, NprocOption, SkipOption, command, option
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.cli.run_options import RunOptions
from ddp_doctor.model.choices import Backend, FailOn, Level


@command(
    "ddp-doctor run",
    "ddp-doctor run --only p2p,allreduce --backend nccl",
    "ddp-doctor run --hosts node1,node2 --json report.json",
    "ddp-doctor run --model train.models:make --from-trace trace.json",
    "srun --ntasks-per-node=1 ddp-doctor run",
    token_normalize_func=lambda name: name.replace("_", "-"),  # torchrun takes both spellings
)
def run(typed: RunOptions, *, outputs: Outputs) -> int:
    """Test these nodes with real ranks and say what is wrong, who is to blame and what fixes it."""
    from ddp_doctor.cli.run import run

    return run(typed, outputs)


@command(
    "ddp-doctor fit train.models:make --memory 80GiB --ranks 8",
    "ddp-doctor fit hf:llama,num_hidden_layers=16 --batch 4 --seq 2048 --precision bf16 --memory 80GiB",
    "ddp-doctor fit train.models:make --measure",
    exits=FITS,
)
def fit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY|hf:NAME",
            help="What FACTORY() of MODULE returns, as run --model takes it, its dict also with"
            " optimizer(parameters) and units, the modules to shard; or a model of transformers' own"
            " configurations, without weights: hf:llama,num_hidden_layers=16, hf:PATH/config.json.",
        ),
    ],
    memory: Annotated[
        str, option(WHERE, "SIZE", "Memory of one GPU, as 80GiB; else that of the smallest one here.")
    ] = "",
    ranks: Annotated[
        int | None, option(WHERE, "N", "Ranks of the job, also more than here; else one a GPU here, or 2.", min=1)
    ] = None,
    nproc_per_node: NprocOption = "auto",
    precision: Annotated[
        Literal["fp32", "bf16", "amp"],
        option(WHAT, None, "bf16: the model converted; amp: bfloat16 to compute, float32 parameters."),
    ] = "fp32",
    strategy: Annotated[
        str,
        option(VERDICT, "NAME", "Require that this one fits: ddp, zero1, zero2, zero3, hsdp ...", completed=strategies),
    ] = "",
    batch: Annotated[int | None, option(WHAT, "B", "Samples of a rank's batch, of an hf: model.", min=1)] = None,
    seq: Annotated[int | None, option(WHAT, "T", "Tokens of a sample, of an hf: model.", min=1)] = None,
    measure: Annotated[bool, option(WHAT, None, "Run three steps of each strategy that fits.", "--measure")] = False,
    fail_on: FailOnOption = FailOn.ERROR,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Say whether a model fits the memory of a GPU under DDP, ZeRO and FSDP, and which of them to take."""
    from ddp_doctor.cli.given import ignored, of_fit
    from ddp_doctor.cli.run import fit
    from ddp_doctor.model.recording import Options

    asked = of_fit(model, memory, batch, seq, ranks=ranks, precision=precision, strategy=strategy, measure=measure)
    options = Options(
        command="fit",
        ignore=ignored(ignore),
        fail_on=fail_on,
        backend=Backend.AUTO if measure else Backend.GLOO,
        model=model,
        fit=asked,
    )
    return fit(options, nproc_per_node, outputs)


@command("ddp-doctor prolog", "ddp-doctor prolog --require-gpus 8 --unsure fail")
def prolog(
    skip: SkipOption = None,
    require_gpus: NodeGpusOption = None,
    unsure: Annotated[str, option(VERDICT, "pass|fail", "What an unsure verdict exits with: 0, or 3.")] = "pass",
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Test what needs no ranks and no torch, in about a second; for the SLURM prolog."""
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
            help="Output of `nvidia-smi topo -m`, `topo -p2p`, `nvlink -s`, or NCCL's XML; none asks this machine.",
        ),
    ] = None,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Read a GPU topology and say what NCCL will make of it."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored

    return commands.topology(file, outputs, ignored(ignore))


@command("ddp-doctor env", "ddp-doctor env --from job.sbatch")
def env(
    source: Annotated[
        str | None,
        option(
            WHAT,
            "FILE|-",
            "Read saved output of `env`, a job script, a Dockerfile or a pod's manifest, and run nothing.",
            "--from",
        ),
    ] = None,
    fail_on: FailOnOption = FailOn.ERROR,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Say which settings of NCCL, torch and gloo are in force, where each comes from and what is wrong."""
    from ddp_doctor.cli import commands
    from ddp_doctor.cli.given import ignored

    return commands.env(source, outputs, ignored(ignore), fail_on)


@command("ddp-doctor lint train.py", "ddp-doctor lint src --select DDL1 --output-format github")
def lint(
    files: Annotated[list[str], typer.Argument(metavar="FILE|DIR|-...", help="Scripts, folders of them, or stdin.")],
    select: Annotated[
        list[str] | None, option(VERDICT, "CODES", "Apply only rules whose codes begin so: DDL101,DDL12 (repeatable).")
    ] = None,
    ignore: IgnoreOption = None,
    fail_on: FailOnOption = FailOn.ERROR,
    *,
    outputs: Outputs,
    quiet: Annotated[bool, option(OUTPUTS, None, "Nothing but errors and warnings.", "--quiet", "-q")] = False,
) -> int:
    """Read training scripts, without running them, and say what is wrong with how they use DDP."""
    from ddp_doctor.cli.lint import lint

    return lint(files, outputs, quiet=quiet, select=select or (), ignore=ignore or (), fail_on=fail_on)
