"""The options of the command line that several commands have, or torchrun has too."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from ddp_doctor.model.choices import FailOn

JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="PATH|-",
        help="Write the report as JSON; in a path %h is the host, %n the node rank.",
    ),
]
EnvFileOption = Annotated[
    str | None,
    typer.Option("--env-file", metavar="PATH|-", help="Write the recommended settings, to be sourced."),
]
RecordOption = Annotated[
    str | None, typer.Option("--record", metavar="PATH|-", help="Write the recording here as well.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the report.")]
FailOnOption = Annotated[FailOn, typer.Option(help="The least severity that makes the verdict sick.")]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="CHECK", help="Run only this check (repeatable).")
]
SkipOption = Annotated[
    list[str] | None, typer.Option("--skip", metavar="CHECK", help="Leave this check out (repeatable).")
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODULE:FACTORY",
        help="A model of yours to test as well: what FACTORY() of MODULE returns is the model, or"
        " (model, make_batch). Your code runs on the ranks.",
    ),
]
RequireGpusOption = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Sick unless the job may use at least N GPUs.")
]

# torchrun's own, with its names, meanings and PET_* variables
NnodesOption = Annotated[
    str,
    typer.Option(
        envvar="PET_NNODES",
        metavar="N|MIN:MAX",
        help="Nodes, at most MAX; by default all that SLURM, mpirun or torchrun has, else this one.",
    ),
]
NprocOption = Annotated[
    str,
    typer.Option(
        envvar="PET_NPROC_PER_NODE", metavar="auto|N", help="Ranks; auto is one a GPU, or 2 on CPUs."
    ),
]
NodeRankOption = Annotated[
    int | None, typer.Option(envvar="PET_NODE_RANK", metavar="R", help="This node's number; the head's is 0.")
]
EndpointOption = Annotated[
    str,
    typer.Option(
        envvar="PET_RDZV_ENDPOINT",
        metavar="HOST[:PORT]",
        help="Where the nodes meet: the head and a free port of it (29400).",
    ),
]
MasterAddrOption = Annotated[
    str, typer.Option(envvar="PET_MASTER_ADDR", metavar="HOST", help="The head, as torchrun names it.")
]
MasterPortOption = Annotated[
    int | None, typer.Option(envvar="PET_MASTER_PORT", metavar="PORT", help="Its port (29500).")
]

HostsOption = Annotated[
    str | None, typer.Option(metavar="A,B", help="Start on these hosts over ssh; the first is the head.")
]
HostfileOption = Annotated[str | None, typer.Option(metavar="FILE", help="The same, one host on each line.")]
JoinTimeoutOption = Annotated[
    float, typer.Option(min=1.0, metavar="SECONDS", help="Time for all nodes to report in.")
]


class Pasted(NamedTuple):
    """Where the recommended settings go in the forms that people paste; each field is an option."""

    sbatch_lines: Annotated[
        str | None,
        typer.Option(
            "--sbatch-lines", metavar="PATH|-", help="Write them as lines for a batch script of SLURM."
        ),
    ] = None
    docker_args: Annotated[
        str | None,
        typer.Option("--docker-args", metavar="PATH|-", help="Write them as arguments of docker run."),
    ] = None
    k8s_env: Annotated[
        str | None,
        typer.Option("--k8s-env", metavar="PATH|-", help="Write them as the env of a container in YAML."),
    ] = None
    torchrun_args: Annotated[
        str | None,
        typer.Option(
            "--torchrun-args", metavar="PATH|-", help="Write them with what stands in for torchrun."
        ),
    ] = None


NOWHERE = Pasted()


def handing_over(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of its parameter ``pasted``: typer reads the signature."""

    @wraps(command)
    def with_options(**given: Any) -> None:
        command(pasted=Pasted(*(given.pop(name) for name in Pasted._fields)), **given)

    signature, parameters = inspect.signature(command), []
    for parameter in signature.parameters.values():
        if parameter.name == "pasted":
            parameters += [
                parameter.replace(name=name, default=None, annotation=kind)
                for name, kind in get_type_hints(Pasted, include_extras=True).items()
            ]
        else:
            parameters.append(parameter)
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_options
