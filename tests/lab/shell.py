"""Hosts for manual experiments.

    python -m tests.lab.shell [--nodes 4] [--second-nic] [--ipv6 dual] [--fault loss:node1:5 ...]

Starts the hosts, prints how to enter them, injects and undoes faults as they are typed, and stops all hosts at Ctrl-C
or Ctrl-D. See docs/how-to/lab.md.
"""

import argparse
import contextlib
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.lab import faults
from tests.lab.hosts import ENTER, Host, Lab, why_no_lab
from tests.lab.planted import Planted

HELP = """plant FAULT    plant a fault, for example: plant loss:node1:5
undo [FAULT]   take this fault away, or the last one
faults         the faults there are, and those that are planted
quit           take the hosts down; also Ctrl-D and Ctrl-C"""

ENTER_HOST = """#!/bin/sh
# A command on {name}, or a shell where none is given. Written anew whenever the environment changes.
[ $# -gt 0 ] || set -- bash --norc
exec {python} -I -S {enter} --foreground {pid} "$PWD" env {environment} "$@"
"""


class Shell:
    """The commands of the shell, and their effect on the lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.planted: dict[str, Planted] = {}
        self.commands: dict[str, Callable[[str], str]] = {
            "plant": self.plant,
            "undo": self.undo,
            "faults": self.faults,
            "help": lambda _text: HELP,
        }

    def introduce(self) -> str:
        """Write the scripts that enter the hosts, and return how to use them."""
        self.write_scripts()
        rows = (f"  {host.name:<8} {', '.join(_plain(host)):<24}" for host in self.lab.hosts)
        example = "node0 ddp-doctor run --nnodes 2 --rdzv-endpoint node0:29400 --node-rank 0"
        return "\n".join(
            [
                *rows,
                "",
                "In another terminal, a shell or a command on a host:",
                f"  export PATH=$PATH:{self.bin}",
                "  node0",
                f"  {example}",
                "",
                HELP,
            ]
        )

    @property
    def bin(self) -> Path:
        """The folder with one script for each host."""
        return self.lab.folder / "bin"

    def write_scripts(self) -> None:
        """Write a script for each running host, with its current environment."""
        self.bin.mkdir(exist_ok=True)
        for host in self.lab.hosts:
            script = self.bin / host.name
            script.write_text(_script(host) if host.is_up else f"#!/bin/sh\necho {host.name} is off\nexit 1\n")
            script.chmod(0o755)

    def obey(self, line: str) -> str:
        """Run a typed command and return its result."""
        word, _, text = line.strip().partition(" ")
        if word not in self.commands:
            return f"no command {word!r}; try help" if word else ""
        try:
            said = self.commands[word](text.strip())
        except (ValueError, RuntimeError, OSError, AssertionError) as error:
            return str(error)
        self.write_scripts()
        return said

    def plant(self, text: str) -> str:
        """Plant a fault. Raises ValueError."""
        if text in self.planted:
            return f"{text} stands already"
        self.planted[text] = faults.plant(self.lab, text)
        return f"planted {text}"

    def undo(self, text: str) -> str:
        """Undo a fault, by default the last one."""
        text = text or next(reversed(self.planted), "")
        if text not in self.planted:
            return "no such fault stands; faults lists them"
        self.planted.pop(text).undo()
        return f"undone {text}"

    def faults(self, _text: str) -> str:
        """List all faults with their first sentence, then the active ones."""
        rows = [f"  {faults.usage(name):<36} {(it.__doc__ or '').splitlines()[0]}" for name, it in FAULTS]
        return "\n".join([*rows, f"planted: {', '.join(self.planted) or 'none'}"])


FAULTS = tuple(sorted(faults.FAULTS.items()))


def _plain(host: Host) -> list[str]:
    return [address.partition("/")[0] for addresses in host.addresses.values() for address in addresses]


def _script(host: Host) -> str:
    variables = {**host.environment, "PS1": r"\h:\w# "}
    return ENTER_HOST.format(
        name=host.name,
        python=sys.executable,
        enter=ENTER,
        pid=host.pid,
        environment=" ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()),
    )


def main(argv: list[str]) -> int:
    """Run until Ctrl-C, Ctrl-D, quit or SIGTERM."""
    parser = argparse.ArgumentParser(prog="make lab-shell", description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--network", default="10.77.0", help="first three numbers of the addresses")
    parser.add_argument("--second-nic", action="store_true", help="an eth1 on a switch of its own")
    parser.add_argument("--ipv6", choices=("none", "dual", "only"), default="none")
    parser.add_argument("--fault", action="append", default=[], help="planted at once; repeatable")
    given = parser.parse_args(argv)
    if reason := why_no_lab():
        sys.stderr.write(f"no lab here: {reason}\n")
        return 1
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if it was started with `&`
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lab = Lab(given.nodes, given.network, second_nic=given.second_nic, ipv6=given.ipv6)
    with contextlib.suppress(KeyboardInterrupt), lab:
        _converse(Shell(lab), given.fault)
    print("\nall hosts are down")
    return 0


def _converse(shell: Shell, first: list[str]) -> None:
    print(shell.introduce())
    for fault in first:
        print(shell.obey(f"plant {fault}"))
    while True:
        print("lab> ", end="", flush=True)
        line = sys.stdin.readline()
        if line.strip() in {"quit", "exit"} or (not line and sys.stdin.isatty()):
            return
        if not line:
            signal.pause()  # in the background, without a terminal: until it is told to end
        if said := shell.obey(line):
            print(said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
