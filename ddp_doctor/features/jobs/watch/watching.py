"""The watcher: starts the command, and reports why it failed."""

import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from textwrap import shorten

from ddp_doctor.features.jobs.watch.command import CannotStart, Command, become
from ddp_doctor.features.jobs.watch.evidence import Evidence, KeptOutput, Output, regular_outputs
from ddp_doctor.features.jobs.watch.judging import CUT_SHORT, Judging, judge_the_end
from ddp_doctor.features.jobs.watch.lookout import Lookout, WatchOptions
from ddp_doctor.ranks import process
from ddp_doctor.sources import proc
from ddp_doctor.starters.detect import OuterWorld, number, outer_world

_NAME = "ddp-watch"
#: The watcher exits at most ten seconds after the command.
_COPYING_S, _OTHER_TASKS_S = 1.5, 3.0
_GONE_S = 9.5
#: A command that ends within this time after Ctrl-C ended because of it.
_BY_HAND_S = 60.0
#: Exit codes of ``logs``.
_NOTHING_SAID, _NOTHING_READ = 0, 2
_MOST_ANCESTORS = 64
_LONGEST_NAME = 60


def watch(argv: Sequence[str], env: Mapping[str, str], options: WatchOptions, say: Callable[[str], None]) -> int:
    """Run the command, watch it, and return its exit code. A signal that ends it also ends this process.

    ``say`` prints a sentence on stderr. If another watcher does the work, this process becomes the command.
    """
    world = outer_world(env, os.getppid())
    evidence = None
    if not argv[0]:
        say("'': not found")
        return 127
    try:
        above, left = os.getpid(), _MOST_ANCESTORS
        while (above := proc.parent(above)) > 1 and left:
            left -= 1
            if (proc.read(f"/proc/{above}/comm") or "").strip() == _NAME:  # another watcher does the work
                become(argv, env)
        evidence = Evidence(env, _folder_name(world), world.local_rank if world else 0)
        if world is not None and not world.is_agent:
            evidence.add_task(world.local_rank, regular_outputs())
            if options.keep_output and evidence.folder is not None:
                KeptOutput(evidence.folder, world.local_rank, is_ours=False).take()
            become(argv, {**env, **evidence.variables})
        node = _node_in_step(world, env)
        if not node or evidence.folder is None:
            _tell(argv, evidence, say, of_several=node is not None)
        return _Watcher(argv, evidence, options, say, node).run({**env, **evidence.variables})
    except CannotStart as error:
        say(str(error))
        if evidence is not None:
            evidence.forget()
        return error.code


def _folder_name(world: OuterWorld | None) -> str:
    if world is None or (world.local_size == 1 and world.launcher != "slurm"):
        return f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    return re.sub(r"[^\w.-]", "_", f"{world.key}-{socket.gethostname()}")


def _node_in_step(world: OuterWorld | None, env: Mapping[str, str]) -> int | None:
    is_one_of = world is not None and world.launcher == "slurm" and world.nnodes > 1
    return number(env, "SLURM_NODEID", 0) if is_one_of and "SLURM_STEP_NODELIST" in env else None


def _tell(argv: Sequence[str], evidence: Evidence, say: Callable[[str], None], *, of_several: bool) -> None:
    command = _named(argv)
    if os.path.basename(argv[0]) == "srun":
        say("ranks started by srun are not visible from here if they hang; use `srun ddp-doctor watch -- …`")
    if evidence.folder is None:
        say(f"watching {command}; no files of it are kept: {evidence.problem}")
        return
    each = ", on each node its own" if of_several else ""
    say(f"watching {command}; if it fails, its files are in {evidence.folder}{each}")
    chosen = (f"{name}={value.replace(f'{evidence.folder}/', '')}" for name, value in evidence.variables.items())
    if evidence.variables:
        say(f"set, because you did not (files are in that directory): {' '.join(chosen)}")


@dataclass
class _Watcher:
    argv: Sequence[str]
    evidence: Evidence
    options: WatchOptions
    say: Callable[[str], None]
    node_in_step: int | None
    _outputs: list[Output] = field(default_factory=list)
    _copies: KeptOutput | None = None
    _oom_kills: int = field(default_factory=lambda: process.oom_kills(of_host=False))

    def run(self, env: Mapping[str, str]) -> int:
        """Run the command, and return its exit code. Raises CannotStart."""
        process.set_name(_NAME)
        sys.stderr.flush()
        self._outputs = regular_outputs()
        self._command = command = Command()
        if self.options.keep_output and self.evidence.folder is not None:
            self._copies = KeptOutput(self.evidence.folder, 0, is_ours=True)
        command.start(self.argv, env, self._copies.streams if self._copies else {})
        if self._copies:
            self._copies.started()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):  # a reader of the output waits until all close it
            if not os.isatty(stream):  # a terminal shows its width
                os.dup2(nothing, stream)
        lookout = Lookout(command, self.evidence, self.options, self.say, self.node_in_step, self._outputs)
        while not command.wait(lookout.pause_s()):
            lookout.look()
        ended_s = time.monotonic()
        lookout.close()
        slower = lookout.slowdown.whole()
        if slower and not self.options.tell_slow:
            self.say(f"{_named(self.argv)} {slower}")
        self._end(ended_s, was_stuck=lookout.is_stuck, was_told=lookout.has_told)
        if slower:
            self.evidence.note(f"ddp-doctor: the job {slower}")
        if command.code != 0:  # last, because it says more than the timeout that followed
            lookout.tell_early_look(ended_s)
        return command.leave_as_it_did()

    # --- the end ---

    def _end(self, ended_s: float, *, was_stuck: bool, was_told: bool) -> None:
        command = self._command
        while self._copies and not self._copies.has_ended() and time.monotonic() - ended_s < _COPYING_S:
            time.sleep(0.01)
        if command.code == 0 and not self._has_failed_elsewhere(ended_s):
            return
        if (killed := process.oom_kills(of_host=False) - self._oom_kills) > 0:
            self.evidence.note(f"the watcher detected {killed} oom_kill events in the memory cgroup of the job")
        files = self.evidence.files()
        how = f"{_named(self.argv)} {_ended(command.code or 0)} {_time_after(ended_s - command.started_s)}"
        if command.code == 0:
            how = f"{_named(self.argv)} exited normally, but another task on this node failed"
        if not files:
            self.evidence.forget()
        elif self.evidence.folder:
            how += f"; its files are in {self.evidence.folder}"
        if was_stuck:
            self.say(f"{how}. It hung; the cause is reported above")
        elif ended_s - command.told.get(signal.SIGINT, -_BY_HAND_S) < _BY_HAND_S:
            self.say(f"{how}. It was interrupted by the user, so its output was not analyzed")
        else:
            self._judge(how, files, _GONE_S - (time.monotonic() - ended_s), was_told=was_told)

    def _has_failed_elsewhere(self, ended_s: float) -> bool:
        while others := [pid for pid, _ in self.evidence.tasks() if not process.has_ended(pid)]:
            if time.monotonic() - ended_s > _OTHER_TASKS_S:
                self.say(
                    f"{_named(self.argv)} exited normally; unwatched tasks still running on this node: {len(others)}"
                )
                return False
            time.sleep(0.05)
        has_failed = self.evidence.has_error_of_other_task()
        if not has_failed:
            self.evidence.forget()
        return has_failed

    def _judge(self, how: str, files: Sequence[str], seconds: float, *, was_told: bool) -> None:
        outputs = [*self._outputs, *(output for _, of_task in self.evidence.tasks() for output in of_task)]
        code, has_failed = _NOTHING_READ, False
        if files or outputs:
            say = partial(self.say, f"{how}. Why:")
            judging = Judging(partial(judge_the_end, files, outputs, os.environ, say, was_told=was_told), seconds)
            code, has_failed = judging.wait(), judging.has_failed
        again = shlex.join(("ddp-doctor", "logs", *files, *(output.path for output in outputs)))
        if code == CUT_SHORT:
            self.say(f"{how}. Its output is too large to read in {seconds:.0f} s; to read all of it, run: {again}")
        elif has_failed:
            self.say(f"{how}. The process that read its output {_ended(code)}; to read the output, run: {again}")
        elif was_told and code in (_NOTHING_SAID, _NOTHING_READ):
            self.say(f"{how}. It made no progress before; see the report above")
        elif self.node_in_step:  # the first node's watcher reports the same
            return
        elif code == _NOTHING_SAID or (code == _NOTHING_READ and (outputs or self._copies)):
            self.say(f"{how}. Its output does not show why")
        elif code == _NOTHING_READ:
            self.say(
                f"{how}. Its output went to a terminal or a pipe and cannot be read again;"
                " use `ddp-doctor watch --keep-output -- …` to keep it"
            )


def _named(argv: Sequence[str]) -> str:
    words = (os.path.basename(argv[0]), *argv[1:])
    return f"`{shorten(shlex.join(words), _LONGEST_NAME, placeholder=' …')}`"


def _ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    from ddp_doctor.knowledge.endings import signal_name

    return f"was killed by {signal_name(-code) or f'signal {-code}'}"


def _time_after(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"after {seconds:.0f} s"
    return f"after {whole // 60} min" if whole < 3600 else f"after {whole // 3600} h {whole % 3600 // 60} min"
