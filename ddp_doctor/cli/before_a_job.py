"""The commands for the time before a job; each imports its code when it is called."""

from typing import Annotated, Literal

import typer

from ddp_doctor.cli.complete import strategies
from ddp_doctor.cli.help import ESTIMATE, FITS, INPUT, VERDICT
from ddp_doctor.cli.options import FailOnOption, IgnoreOption, NodeGpusOption, NprocOption, SkipOption, command, option
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.cli.run_options import RunOptions
from ddp_doctor.model.choices import Backend, FailOn, Level


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


@command(
    "ddp-doctor fit train.models:make --memory 80GiB --ranks 8",
    "ddp-doctor fit hf:llama,num_hidden_layers=16 --batch 4 --seq 2048 --precision bf16 --memory 80GiB",
    exits=FITS,
)
def fit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY|hf:NAME",
            help="Model factory as for run --model, or a transformers configuration, for example"
            " hf:llama,num_hidden_layers=16 or hf:PATH/config.json.",
        ),
    ],
    memory: Annotated[
        str,
        option(ESTIMATE, "SIZE", "Memory of one GPU, for example 80GiB. [default: memory of the smallest local GPU]"),
    ] = "",
    ranks: Annotated[
        int | None, option(ESTIMATE, "N", "Number of ranks to estimate for. [default: one per local GPU, or 2]", min=1)
    ] = None,
    nproc_per_node: NprocOption = "auto",
    precision: Annotated[
        Literal["fp32", "bf16", "amp"],
        option(
            ESTIMATE, None, "Precision: fp32, bf16 (bfloat16 parameters) or amp (bfloat16 compute, float32 parameters)."
        ),
    ] = "fp32",
    strategy: Annotated[
        str,
        option(
            VERDICT, "NAME", "Fail unless the model fits with this strategy, for example zero2.", completed=strategies
        ),
    ] = "",
    batch: Annotated[int | None, option(ESTIMATE, "B", "Batch size per rank, for hf: models.", min=1)] = None,
    seq: Annotated[int | None, option(ESTIMATE, "T", "Tokens per sample, for hf: models.", min=1)] = None,
    measure: Annotated[
        bool, option(ESTIMATE, None, "Run three steps with each strategy that fits.", "--measure")
    ] = False,
    budget: Annotated[float, option(ESTIMATE, "SECONDS", "Time budget for --measure.", min=1.0)] = 60.0,
    fail_on: FailOnOption = FailOn.ERROR,
    ignore: IgnoreOption = None,
    *,
    outputs: Outputs,
) -> int:
    """Estimate if a model fits GPU memory under DDP, ZeRO or FSDP."""
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
        budget_s=budget,
        fit=asked,
    )
    return fit(options, nproc_per_node, outputs)


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
