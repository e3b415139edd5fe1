"""Where a command's results go: any number of files, stdout for ``-``, and the screen."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TextIO

from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.render import env_file, json_text, topology
from ddp_doctor.render.files import CannotWrite, write


@dataclass(frozen=True)
class Outputs:
    """The output options of one command. With ``-`` data go to stdout and words to stderr."""

    json: str | None = None
    env_file: str | None = None
    record: str | None = None
    quiet: bool = False
    is_piped: bool = False  # a launcher shows a terminal to its ranks and puts what they say in a file
    svg: str | None = None

    @property
    def words_to(self) -> TextIO:
        """The stream for people."""
        takes_stdout = "-" in (self.json, self.env_file, self.record, self.svg)
        return sys.stderr if takes_stdout else sys.stdout

    def at_node(self, host: str, node_rank: int) -> "Outputs":
        """With ``%h`` in paths as the host's name and ``%n`` as the node rank."""

        def named(path: str | None) -> str | None:
            return path and path.replace("%h", host).replace("%n", str(node_rank))

        return replace(
            self,
            json=named(self.json),
            env_file=named(self.env_file),
            record=named(self.record),
            svg=named(self.svg),
        )

    def without_files(self) -> "Outputs":
        """For a node that leaves the outputs to the head."""
        return replace(self, json=None, env_file=None, record=None, svg=None)

    def write(self, recording: Recording, report: Report) -> list[str]:
        """Write all files asked for, recording first; returns one sentence for each that failed."""
        texts: tuple[tuple[str | None, Callable[[], str]], ...] = (
            (self.record, lambda: recording.model_dump_json(indent=1) + "\n"),
            (self.json, lambda: json_text.render(report)),
            (self.env_file, lambda: env_file.render(report)),
            (self.svg, lambda: topology.picture(report, recording)),
        )
        problems = []
        for target, make in texts:
            if target is not None:
                try:
                    write(target, make())
                except CannotWrite as error:
                    problems.append(str(error))
        return problems
