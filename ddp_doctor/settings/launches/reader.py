"""Find the commands in a script that start ranks, without running the script.

A shell started by another shell is one level deeper. Commands that srun, mpirun or a loop over hosts starts on several
nodes have a depth; words at this depth or deeper expand on each node. The variable in
``srun torchrun --node-rank=$SLURM_NODEID`` expands once, before the start. In
``srun bash -c 'torchrun --node-rank=$SLURM_NODEID'`` it expands on each node.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddp_doctor.facts.node.env_vars import Argument, Launch, Program, Started
from ddp_doctor.parse.yaml_text import read_yaml
from ddp_doctor.settings.launches import starts
from ddp_doctor.settings.launches.expansion import Frame
from ddp_doctor.settings.launches.headers import job_of
from ddp_doctor.settings.launches.running import ASSIGNMENT, UNREAD_SCRIPT, Runner, Start, numbers_of
from ddp_doctor.settings.launches.shell_tree import Call
from ddp_doctor.settings.launches.values import OF_LOOP, ONCE

#: Names of variables with a launcher's options, and of variables with a launcher.
_OF_OPTIONS = re.compile(r"ARG|OPT|FLAG|PARAM|CONF|DIST|RDZV|LAUNCH|EXTRA", re.IGNORECASE)
_OF_LAUNCHER = re.compile(r"LAUNCH|TORCHRUN|CMD|COMMAND|RUNNER|DISTRIBUTED|ACCELERATE|DEEPSPEED", re.IGNORECASE)
_SSH_FLAGS = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]+")
#: Variables that decide whether ranks can connect, if a script starts them without torchrun.
_OF_MEETING = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"),
    *("NODE_RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
)


class Reader(Runner):
    """A reader that collects the launches in a file."""

    _last = 0  # the line of the launch that the previous command made
    _without_options: Launch | None = None  # a launch whose options are in another file

    def _cut(self, call: Call) -> None:
        """Note that this line has options of the launch before it: a backslash is missing, or a space follows it."""
        file, line = self.located(self._last)
        _, rest = self.located(call.line)
        left = self._without_options
        if left is not None and (left.file, left.line) == (file, line):
            self.launches.append(left)
            self.unchecked = [each for each in self.unchecked if (each.file, each.line) != (file, line)]
        self.launches = [
            each.model_copy(update={"cut": rest})
            if self._last and (each.file, each.line, each.cut) == (file, line, None)
            else each
            for each in self.launches
        ]

    def start(self, words: list[str], frame: Frame, start: Start | None, call: Call) -> None:
        """Follow a command that may start something."""
        while words and ASSIGNMENT.fullmatch(words[0]) and not words[0].startswith("\ue000"):
            words = words[1:]
        if not words or self._left <= 0:
            return
        if words[0].startswith("-"):
            self._cut(call)
            return
        self._last = 0
        words = [self.values.literal(words[0]) or words[0], *words[1:]]
        name = posixpath.basename(words[0])
        if self.values.only(words[0]) and self.values.literal(words[0]) is None:
            self._of_unknown(words, frame, start, call)
        elif name in starts.TASK_STARTERS:
            words = words[1:] if name == "flux" else words
            at = starts.behind_options(words)
            inner = self._starter(name, words[:at], frame, call)
            numbers = {**frame.numbers, **numbers_of(Launch(program="srun", line=0, **inner.fields))}
            more = _handed(words[1:at], replace(frame, numbers=numbers))
            self.start(words[at:], more, inner, call)
        elif name in starts.ON_ALLOCATED:
            self._on_allocated(name, words, frame, call)
        elif name in starts.REMOTE:
            self._remote(name, words, frame, call)
        elif name == "sbatch":
            self._submitted(words, frame, call)
        elif name in starts.SHELLS:
            self._shell(words, frame, start, call)
        elif name == "torchrun" or starts.PYTHON.fullmatch(name) or name in ("accelerate", "deepspeed"):
            self._launcher(name, words, frame, start, call)
        elif name in starts.WRAPPERS:
            self._wrapped(name, words, frame, start, call)
        else:
            self._program(name, words, frame, start, call)

    def _starter(self, name: str, words: list[str], frame: Frame, call: Call) -> Start:
        fields = starts.fields_of([self.values.literal(word) or word for word in words[1:]], starts.options_of(name))
        is_one = fields.get("nodes") == (1, 1) or fields.get("tasks") == 1
        if frame.loops and (is_one or any(word.startswith(("-w", "--nodelist")) for word in words)):
            return Start("ssh", call.line, frame.depth + 1, on_one=self._is_of_loop(words[1:]))
        file = ""
        if name in starts.MPIRUN:
            given = dict(starts.leading(words[1:], ()))
            file, hosts = (next((given[name] for name in each if name in given), "") for each in starts.OF_HOSTS)
            read = self.file(file, frame) if file else None
            listed = starts.listed_hosts(read[1]) if read else self.values.literal(hosts) or ""
            count = starts.count_hosts(listed, fields.get("tasks"))
            fields |= {"nodes": (count, count)} if count and "nodes" not in fields else {}
        if starts.VARIABLE.fullmatch(file):
            self.leave(call.line, f"{file} is the name of a variable: $ is missing")
        program: Program = "srun" if name in starts.SRUN else "mpirun"
        return Start(program, call.line, frame.depth + 1, fields, on_one=is_one, typed=name)

    def _on_allocated(self, name: str, words: list[str], frame: Frame, call: Call) -> None:
        """Follow pbsdsh or blaunch, which start a command on all hosts of the job or on a numbered one."""
        at = 1
        while at < len(words) and words[at].startswith("-"):
            at += 2 if words[at] in starts.ON_ALLOCATED[name] else 1
        on_one = "-n" in words[1:at] and name == "pbsdsh"
        start = Start("ssh", call.line, frame.depth + 1, by_hand=on_one and not frame.loops, on_one=on_one, typed=name)
        self.start(words[at:], frame, start, call)

    def _remote(self, name: str, words: list[str], frame: Frame, call: Call) -> None:
        at = 1
        while at < len(words) and words[at].startswith("-"):
            at += 1 if _SSH_FLAGS.fullmatch(words[at]) or (len(words[at]) > 2 and words[at][1] != "-") else 2
        rest = words[at + 1 :] if name == "ssh" else words[at:]
        is_left = any(_SSH_FLAGS.fullmatch(word) and "f" in word for word in words[1:at])
        is_of_loop = self._is_of_loop(words[at : at + 1])
        on_one = name == "ssh" and not is_left and (not frame.loops or is_of_loop)
        by_hand = name == "ssh" and not frame.loops
        target = self.values.shown(words[at]).rpartition("@")[2] if name == "ssh" and is_of_loop else ""
        start = Start("ssh", call.line, frame.depth + 1, by_hand=by_hand, on_one=on_one, target=target)
        inner = frame.inner(frame.depth + 1, hands_on=False)
        reads = not rest or (posixpath.basename(rest[0]) in starts.SHELLS and all(each[0] == "-" for each in rest[1:]))
        text = self.document(call, frame) if reads else " ".join(rest)
        self._run_text(text, call.line + (1 if reads else 0), inner, start)

    def _is_of_loop(self, words: list[str]) -> bool:
        return any(part.depth == OF_LOOP for word in words for part in self.values.parts(word))

    def _shell(self, words: list[str], frame: Frame, start: Start | None, call: Call) -> None:
        inner = frame.inner(frame.depth + 1)
        at = next((at for at, word in enumerate(words) if at and re.fullmatch(r"-[a-zA-Z]*c", word)), None)
        if at is not None and words[at + 1 : at + 2] == ["--"]:
            at += 1
        if at is not None and at + 1 < len(words):
            self._run_text(words[at + 1], call.line, inner, start)
            return
        named = next((at for at, word in enumerate(words) if at and not word.startswith("-")), len(words))
        file = words[named] if named < len(words) else ""
        if self._run_file(words[named:], inner, start):
            return
        if not file and call.document is not None:
            text = self.document(call, frame)
            self._run_text(text, call.line + 1, inner, start)
        elif file:
            self._unread_script(file, frame, start, call)

    def _submitted(self, words: list[str], frame: Frame, call: Call) -> None:
        """Follow a job that the script writes and submits itself."""
        given = (self.file(word, frame) for word in words[1:] if not word.startswith("-"))
        file = next(filter(None, given), None)
        line, text = call.line + 1, ""
        wrapped = [at for at, word in enumerate(words) if word == "--wrap" or word.startswith("--wrap=")]
        if wrapped:
            after = words[wrapped[0] + 1] if words[wrapped[0] + 1 :] else ""
            line, text = call.line, words[wrapped[0]][len("--wrap=") :] or after
        elif call.document is not None:
            text = self.document(call, frame)
        elif file:
            line, text = file
        outer, self.job = self.job, job_of([*text.split("\n")], words[1:])
        if text:
            inner = frame.inner(0, hands_on="--export=NONE" not in words)
            inner.is_batch, inner.numbers, inner.sometimes = True, numbers_of(self.job), 0
            self._run_text(text, line, inner, None)
        self.job = outer or self.job

    def _unread_script(self, file: str, frame: Frame, start: Start | None, call: Call) -> None:
        if start is not None:
            self.leave(call.line, f"{self.values.shown(file)} was not read")
            self._add("script", {}, frame, start, call)
        else:
            self._note(self.unread, call.line, UNREAD_SCRIPT)

    def _of_unknown(self, words: list[str], frame: Frame, start: Start | None, call: Call) -> None:
        shown = self.values.shown(words[0])
        at = _payload(words)
        if any(word in starts.TORCHRUN_MODULES for word in words[1:6]):
            self._launcher("python", words, frame, start, call)
        elif at:
            self.start(words[at:], frame, start, call)
        elif start is not None or _OF_LAUNCHER.search(shown):
            self.leave(call.line, f"what {shown} stands for is unknown")

    def _wrapped(self, name: str, words: list[str], frame: Frame, start: Start | None, call: Call) -> None:
        at = _payload(words)
        inner = frame.inner(frame.depth, hands_on=False) if name in starts.ISOLATING else frame
        inner = _handed(words[: at or len(words)], inner)
        if name in starts.ISOLATING and words[1:2] == ["run"] and self._has_own_network(words[: at or len(words)]):
            inner = replace(inner, container=name)
        if at:
            self.start(words[at:], inner, start, call)
        elif script := next((word for word in words[1:] if word.endswith(".py")), None):
            self._launcher("python", ["python", script], inner, start, call)
        elif opaque := next((word for word in words[1:] if self._is_launcher(word)), None):
            self._of_unknown([opaque], inner, start, call)
        elif start is not None and name in starts.ISOLATING:
            self.leave(call.line, "what its image runs is unknown")

    def _has_own_network(self, words: list[str]) -> bool:
        """Return True if no option names the network of a container."""
        names_one = any(word.startswith("--net") for word in words)
        return not names_one and all(self.values.only(word) is None for word in words)

    def _is_launcher(self, word: str) -> bool:
        return self.values.only(word) is not None and _OF_LAUNCHER.search(self.values.shown(word)) is not None

    def _program(self, name: str, words: list[str], frame: Frame, start: Start | None, call: Call) -> None:
        shown = self.values.shown(name)
        if name.endswith(".py"):
            self._launcher("python", ["python", *words], frame, start, call)
        elif name in starts.WITH_SIDE_STEPS and words[1:] and words[1] in starts.SIDE_STEPS:
            pass
        elif ("/" in words[0] or "." in name) and self._run_file(words, frame.inner(frame.depth + 1), start):
            return
        elif name.endswith((".sh", ".bash", ".slurm")):
            self._unread_script(words[0], frame, start, call)
        elif name in starts.OTHER_LAUNCHERS and (start is not None or name in starts.ALWAYS_LAUNCH):
            self.leave(call.line, f"the launcher {name} is not followed")
        elif not starts.is_harmless(name) and (at := _payload(words)):
            self.start(words[at:], frame, start, call)
        elif start is not None and start.program != "pods" and not starts.is_harmless(name):
            self.leave(call.line, f"what {shown} starts is unknown")

    # --- what starts ranks ---

    def _launcher(self, name: str, words: list[str], frame: Frame, start: Start | None, call: Call) -> None:
        started: Started | None = "torchrun" if name == "torchrun" else None
        rest, module = words[1:], ""
        if started is None and name == "accelerate":
            started, rest = ("accelerate" if rest[:1] == ["launch"] else ""), rest[1:]
        elif started is None and name == "deepspeed":
            started = "deepspeed"
        elif started is None:
            for at, word in enumerate([self.values.literal(word) or word for word in words[1:7]], 1):
                file = word.removesuffix(".py").replace("/", ".")
                if word in starts.TORCHRUN_MODULES or file.endswith(tuple(starts.TORCHRUN_MODULES)):
                    started, rest, module = "torchrun", words[at + 1 :], file.rpartition(".")[2]
                elif words[at - 1] == "-m" and starts.MISSPELT.fullmatch(word):
                    self.leave(call.line, f"torch has no module {word}")
                    return
                elif word in ("accelerate.commands.launch", "deepspeed.launcher.runner"):
                    started, rest = ("accelerate" if word[0] == "a" else "deepspeed"), words[at + 1 :]
                if started or not (word.startswith("-") or words[at - 1] in ("-X", "-W")):
                    break
        if started:
            older = ["-m=torch.distributed.launch"] if module == "launch" else []
            self._options(started, [*older, *starts.dashed(rest)], frame, start, call)
        elif started is None and start is not None:
            self._add("python", {}, frame, start, call)
        elif started is None and frame.is_batch and self._has_several_tasks() and rest and rest[0].endswith(".py"):
            file, line = self.located(call.line)
            self.bare = Launch(program="torchrun", line=line, file=file, starts="python", quote=self.quote(call.line))

    def _has_several_tasks(self) -> bool:
        job = self.job
        return job is not None and ((job.nodes or (1, 1))[0] > 1 or max(job.tasks or 1, job.tasks_per_node or 1) > 1)

    def _options(self, started: Started, words: list[str], frame: Frame, start: Start | None, call: Call) -> None:
        """Parse the launcher's own options, which precede the script."""
        wanted = {"torchrun": starts.TORCHRUN, "accelerate": starts.ACCELERATE, "deepspeed": starts.DEEPSPEED}[started]
        found: dict[str, str] = {}
        at = 0
        while at < len(words):
            part = self.values.only(words[at])
            word = words[at] = (self.values.literal(words[at]) or words[at]) if part else words[at]
            if part is not None and part.kind != "default":
                if not _OF_OPTIONS.search(part.text) and "[@]" not in part.text:
                    break
                self.leave(call.line, f"which options {part.text} holds is unknown")
                return
            if not word.startswith("-"):
                break
            for name, value in starts.leading(words[at : at + 2], ()):
                found[name] = value
                break
            at += starts.words_of_option(words, at)
        given = {name: value for name, value in found.items() if name in wanted}
        is_module = {"--no-python", "--module"} & found.keys() or found.get("-m") == ""
        script = "" if is_module else self.values.shown("".join(words[at : at + 1]))
        meant = ((name, starts.meant_by(name)) for name in (found if started == "torchrun" else ()))
        misspelt = next(((name, option) for name, option in meant if option), None)
        if started == "torchrun":
            for name in starts.TORCHRUN:
                variable = f"PET_{name[2:].replace('-', '_').upper()}"
                if name not in given and variable in frame.exported and variable in frame.variables:
                    given[name] = frame.variables[variable]
        elif started == "accelerate":
            given = {starts.ACCELERATE[name]: value for name, value in given.items()}
            given = self._of_file(given.get("--config-file", ""), frame) | given
            is_several = start is not None or (self.job is not None and self.job.nodes not in (None, (1, 1)))
            if is_several and not self._is_known_to_accelerate(given, call):
                file, line = self.located(call.line)
                program: Program = start.program if start else "torchrun"
                self._last, quote = call.line, self.quote(call.line)
                self._without_options = Launch(program=program, line=line, file=file, starts=started, quote=quote)
                return
        self._add(started, given, frame, start, call, script, misspelt)

    def _of_file(self, name: str, frame: Frame) -> dict[str, str]:
        """Return the options in a configuration of accelerate that the script itself writes."""
        found = self.file(name, frame) if name else None
        documents = read_yaml(found[1].split("\n")).read if found else ()
        pairs = documents[0].items() if documents and isinstance(documents[0], dict) else ()
        options = {f"--{key.replace('_', '-')}": value for key, value in pairs if isinstance(value, str)}
        return {starts.ACCELERATE[option]: value for option, value in options.items() if option in starts.ACCELERATE}

    def _is_known_to_accelerate(self, given: dict[str, str], call: Call) -> bool:
        """Return True if the number of machines is on the command line rather than in a file."""
        if "--nnodes" not in given:
            file = self.values.shown(given.get("--config-file", "its default configuration"))
            self.leave(call.line, f"the number of machines is in {file}, which was not read")
            return False
        machines, ranks = (self.values.literal(given.get(name, "")) or "" for name in ("--nnodes", "--num-processes"))
        if machines.isdecimal() and ranks.isdecimal() and int(machines):
            given["--nproc-per-node"] = str(max(int(ranks) // int(machines), 1))
        return True

    def _add(
        self,
        started: Started,
        given: dict[str, str],
        frame: Frame,
        start: Start | None,
        call: Call,
        script: str = "",
        misspelt: tuple[str, str] | None = None,
    ) -> None:
        by_hand = start.by_hand if start else self.job is None
        depth = start.depth if start else 0 if by_hand else ONCE
        arguments = {name: self.values.argument(value, depth) for name, value in given.items()}
        arguments |= self._endpoint(given, depth, by_accelerate=started == "accelerate")
        if start and start.target and "host" in arguments and arguments["host"].text == start.target:
            arguments["host"] = arguments["host"].model_copy(update={"means": "own-name"})
        exported = frame.variables.keys() if frame.exports_all else frame.exported & frame.variables.keys()
        environment = {
            name: self.values.argument(frame.variables[name], depth) for name in _OF_MEETING if name in exported
        }
        nnodes, ranks = (arguments.get(name) for name in ("--nnodes", "--nproc-per-node"))
        of_torchrun: dict[str, Any] = {}
        hosts = self.file(given["--hostfile"], frame) if "--hostfile" in given else None
        if hosts is not None and started == "deepspeed":
            of_torchrun["host_file"] = starts.host_file_of(hosts[1])
        if started in ("torchrun", "accelerate"):
            of_torchrun["agents"] = starts.nodes_of(nnodes.text) if nnodes and nnodes.kind == "literal" else None
            of_torchrun["ranks_per_task"] = int(ranks.text) if ranks and ranks.text.isdecimal() else None
            of_torchrun["node_rank"] = "--node-rank" in arguments
        file, line = self.located(call.line)
        launch = Launch(
            program=start.program if start else "torchrun",
            line=line,
            file=file,
            starts=started,
            quote=self.quote(call.line),
            arguments=arguments,
            environment=environment,
            path=((frame.sometimes, 0),) if frame.sometimes else (),
            by_hand=by_hand,
            starter=start.typed if start else "",
            container=frame.container,
            waits=(start is None or start.on_one) and not frame.background,
            cut=line if script == "/" else None,
            script=script,
            misspelt=misspelt,
            **(start.fields if start else {}),
            **of_torchrun,
        )
        self.added += 1
        self._last = call.line
        of_line = [each for each in self.launches if each.line == launch.line]
        if not self._silent and launch not in of_line:
            self.launches.append(launch)

    def _endpoint(self, given: dict[str, str], depth: int, *, by_accelerate: bool) -> dict[str, Argument]:
        """Return host and port of the rendezvous, combined the way torchrun does (torch/distributed/run.py).

        accelerate gives torchrun its main process's address as the endpoint (utils/launch.py).
        """
        endpoint = given.get("--rdzv-endpoint", "")
        host, colon, port = endpoint.rpartition(":")
        if endpoint and (endpoint.endswith("]") or not colon):
            host, port = endpoint, ""
        if not endpoint and (by_accelerate or self.values.shown(given.get("--rdzv-backend", "static")) == "static"):
            host, port = given.get("--master-addr", ""), given.get("--master-port", "")
        pairs = (("host", host.strip("[]")), ("port", port))
        return {name: self.values.argument(value, depth) for name, value in pairs if value}


def _payload(words: Sequence[str]) -> int | None:
    """Return the position of the program that another program runs."""
    return next((at for at, word in enumerate(words) if at and starts.is_payload(word)), None)


def _handed(words: Sequence[str], frame: Frame) -> Frame:
    """Return the frame with variables from options: ``--export=ALL,A=b``, ``-e A=b``, ``-x A=b``, ``env A=b``."""
    given: dict[str, str] = {}
    for before, word in zip(["", *words], words, strict=False):
        option, _, value = word.partition("=") if word.startswith(("--env=", "--export=")) else (before, "", word)
        if option in ("-e", "--env", "-x", "--export", "-genv") or words[0] == "env":
            pairs = (ASSIGNMENT.fullmatch(part) for part in (value.split(",") if option == "--export" else [value]))
            given |= {found[1]: found[3] for found in pairs if found}
    if not given:
        return frame
    return replace(frame, variables={**frame.variables, **given}, exported=frame.exported | given.keys())
