"""Whether this command is to start agents on all nodes, and how: over ssh or by srun."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_doctor.parse.options import RENDEZVOUS_PORT, nnodes, written
from ddp_doctor.starters.detect import Launcher, OuterWorld
from ddp_doctor.starters.place import Asked, allocation
from ddp_doctor.starters.srun import by_srun
from ddp_doctor.starters.ssh import address_of, is_here, names, over_ssh
from ddp_doctor.starters.started_process import Start

_BY = {"slurm": "srun", "mpi": "mpirun", "torchrun": "torchrun"}


@dataclass(frozen=True)
class StartedNodes:
    """The nodes of a run that one command starts."""

    starts: Sequence[Start]
    hosts: tuple[str, ...]  # by node rank
    endpoint: tuple[str, int]  # port 0: the step computes it
    launcher: Launcher


def start_all_nodes(
    asked: Asked, env: Mapping[str, str], outer: OuterWorld | None, arguments: Sequence[str]
) -> StartedNodes | Asked:
    """How to start the agents; where this process is its node's agent itself, what that one was asked.

    ``arguments`` are those of ``run`` that are not about nodes. Raises ValueError with one sentence.
    """
    if asked.hosts:
        if outer is not None and outer.nnodes * outer.local_size > 1:
            raise ValueError(f"--hosts starts the nodes itself: type it once, not under {_BY[outer.launcher]}")
    elif asked.node_rank is not None:
        return asked  # started by hand on each
    else:
        return _in_allocation(asked, env, outer, arguments)
    hosts = chosen(asked)
    if len(hosts) == 1 and is_here(hosts[0]):
        return replace(asked, nnodes="1", hosts=())
    where = asked.endpoint or (address_of(hosts[0], env), RENDEZVOUS_PORT)
    at = ("--rdzv-endpoint", written(*where), "--nnodes", str(len(hosts)))
    commands = [(*doctor(), "run", *arguments, *at, "--node-rank", str(rank)) for rank in range(len(hosts))]
    try:
        starts = over_ssh(hosts, commands, env, os.getcwd())
    except FileNotFoundError:
        raise ValueError("--hosts needs ssh, which is not on PATH; start the command on each host") from None
    return StartedNodes(starts, names(hosts), where, "ssh")


def chosen(asked: Asked) -> tuple[str, ...]:
    """The first hosts of the list, as many as --nnodes takes. Raises ValueError."""
    if asked.node_rank is not None:
        raise ValueError("--hosts numbers the nodes itself: leave --node-rank out")
    called = names(asked.hosts)
    twice = next((name for number, name in enumerate(called) if name in called[:number]), None)
    if twice is not None:
        raise ValueError(f"{twice} stands twice among the hosts; each runs one agent, whatever its slots")
    least, most = nnodes(asked.nnodes) if asked.nnodes else (1, len(called))
    if len(called) < least:
        raise ValueError(f"--nnodes asks for {least}, but the list of hosts has only {len(called)}")
    chosen = asked.hosts[:most]
    if len(chosen) > 1 and any(name in ("localhost", "127.0.0.1", "::1") for name in names(chosen)):
        raise ValueError("the other hosts cannot reach this one as localhost: list it by its name")
    return chosen


def _in_allocation(
    asked: Asked, env: Mapping[str, str], outer: OuterWorld | None, arguments: Sequence[str]
) -> StartedNodes | Asked:
    allocated = allocation(env, outer)
    if allocated is None:
        return asked
    least, most = nnodes(asked.nnodes) if asked.nnodes else (1, len(allocated.hosts))
    if least > len(allocated.hosts):
        raise ValueError(
            f"--nnodes asks for {least}, but SLURM job {allocated.job_id} has {len(allocated.hosts)}: ask sbatch"
            " or salloc for more with -N, or leave --nnodes out"
        )
    hosts = allocated.hosts[:most]
    if len(hosts) == 1 and allocated.is_inside:
        return replace(asked, nnodes="1", hosts=())
    where = asked.endpoint or (hosts[0], 0)
    at = ("--rdzv-endpoint", written(*where)) if where[1] else ()
    try:
        start = by_srun(hosts, (*doctor(), "run", *arguments, *at), env)
    except FileNotFoundError:
        raise ValueError(
            f"SLURM job {allocated.job_id} has {len(hosts)} nodes, but srun is not on PATH; test this host alone"
            " with --nnodes 1"
        ) from None
    return StartedNodes([start], hosts, where, "slurm")


def doctor() -> tuple[str, ...]:
    """This program with this interpreter: its script or its single file where it was started by that, else ``-m``."""
    if archive := single_file():
        return sys.executable, archive
    script = os.path.abspath(sys.argv[0])
    if os.path.basename(script) == "ddp-doctor" and os.path.isfile(script):
        return sys.executable, script
    return sys.executable, "-m", "ddp_doctor"


def single_file() -> str | None:
    """The zip of tools/single_file.py that Python runs in this process, if it does."""
    main = getattr(sys.modules["__main__"], "__file__", None) or ""
    archive = os.path.abspath(os.path.dirname(main)) if os.path.basename(main) == "__main__.py" else ""
    return archive if os.path.isfile(archive) else None
