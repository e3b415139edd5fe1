"""The command ``fit``. It imports its code only when called."""

import os
from typing import Annotated, Literal

import typer

from ddp_doctor.cli.help import ESTIMATE, VERDICT
from ddp_doctor.cli.options import FailOnOption, IgnoreOption, NprocOption, command, option
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.model.choices import Backend, Command, FailOn

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _strategies(incomplete: str) -> list[str]:
    from ddp_doctor.knowledge.ddp.strategies import BY_NAME

    return [name for name in BY_NAME if name.startswith(incomplete)]


@command(
    "ddp-doctor fit train.models:make --memory 80GiB --ranks 8",
    "ddp-doctor fit hf:llama,num_hidden_layers=16 --batch 4 --seq 2048 --precision bf16 --memory 80GiB",
    exits="Exit codes: 0 fits, 1 does not fit with any strategy (or with the --strategy given), 2 usage error or"
    " unusable model, 3 memory unknown or estimate incomplete, 130 interrupted.",
    of=app,
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
            VERDICT, "NAME", "Fail unless the model fits with this strategy, for example zero2.", completed=_strategies
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
    """Estimate on one rank of this node, or measure on all its ranks, and show the report."""
    from ddp_doctor.cli.given import ignored
    from ddp_doctor.cli.run import rank_count, test_and_report
    from ddp_doctor.features.model.fit.options import fit_options
    from ddp_doctor.model.recording import Options
    from ddp_doctor.starters.request import RunRequest

    asked = fit_options(model, memory, batch, seq, ranks=ranks, precision=precision, strategy=strategy, measure=measure)
    codes, of_node = ignored(ignore), rank_count(nproc_per_node)
    options = Options(
        command=Command.FIT.value,
        ignore=codes,
        fail_on=fail_on,
        backend=Backend.AUTO if measure else Backend.GLOO,
        model=model,
        budget_s=budget,
        fit=asked.model_copy(update={"ranks_per_node": of_node}),
    )
    return test_and_report(RunRequest(options, dict(os.environ), nproc_per_node=of_node if measure else 1), outputs)
