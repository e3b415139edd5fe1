"""Where a command's results go: any number of files, stdout for ``-``, and the screen."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TextIO

from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.render import (
    docker_args,
    env_file,
    handover,
    json_text,
    k8s_env,
    sbatch_lines,
    topology,
    torchrun_args,
)
from ddp_doctor.render.files import CannotWrite, write
from ddp_doctor.render.handover import HandOver

#: Fields that hold a path, in the order in which they are written: what all else follows from comes first.
_PATHS = (
    *("record", "json", "env_file", "svg"),
    *("sbatch_lines", "docker_args", "k8s_env", "torchrun_args"),
)


@dataclass(frozen=True)
class Outputs:
    """The output options of one command. With ``-`` data go to stdout and words to stderr."""

    json: str | None = None
    env_file: str | None = None
    record: str | None = None
    quiet: bool = False
    is_piped: bool = False  # a launcher shows a terminal to its ranks and puts what they say in a file
    svg: str | None = None
    sbatch_lines: str | None = None
    docker_args: str | None = None
    k8s_env: str | None = None
    torchrun_args: str | None = None
    host: str = ""  # the node's, once it is known
    own: frozenset[str] = frozenset()  # outputs that each node has a file of its own for

    @property
    def paths(self) -> dict[str, str]:
        """The outputs that are asked for."""
        return {name: path for name in _PATHS if (path := getattr(self, name)) is not None}

    @property
    def words_to(self) -> TextIO:
        """The stream for people."""
        return sys.stderr if "-" in self.paths.values() else sys.stdout

    def at_node(self, host: str, node_rank: int) -> "Outputs":
        """With ``%h`` in paths as the host's name and ``%n`` as the node rank."""
        named: dict[str, Any] = {
            name: path.replace("%h", host).replace("%n", str(node_rank)) for name, path in self.paths.items()
        }
        own = frozenset(name for name, path in self.paths.items() if path != named[name])
        return replace(self, host=host, own=own, **named)

    def without_files(self) -> "Outputs":
        """For a node that leaves the outputs to the head."""
        none: dict[str, Any] = dict.fromkeys(_PATHS)
        return replace(self, **none)

    def write(self, recording: Recording, report: Report) -> list[str]:
        """Write all files asked for, recording first; returns one sentence for each that failed."""
        texts: dict[str, Callable[[], str]] = {
            "record": lambda: recording.model_dump_json(indent=1) + "\n",
            "json": lambda: json_text.render(report),
            "env_file": lambda: env_file.render(handover.of(report)),
            "svg": lambda: topology.picture(report, recording),
            "sbatch_lines": lambda: sbatch_lines.render(handover.of(report)),
            "docker_args": lambda: docker_args.render(self._of_host("docker_args", report)),
            "k8s_env": lambda: k8s_env.render(self._of_host("k8s_env", report)),
            "torchrun_args": lambda: torchrun_args.render(self._of_host("torchrun_args", report)),
        }
        problems = []
        for name, target in self.paths.items():
            try:
                write(target, texts[name]())
            except CannotWrite as error:
                problems.append(str(error))
        return problems

    def _of_host(self, name: str, report: Report) -> HandOver:
        """All hosts' values, or in a file of its own this host's."""
        given = handover.of(report)
        return given.on(self.host) if name in self.own else given
