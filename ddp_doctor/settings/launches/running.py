"""Interpret a script without starting anything: variables, blocks, functions and files that it writes.

A subclass evaluates what a command starts (``reader``).
"""

from __future__ import annotations

import posixpath
import re
from abc import abstractmethod
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from textwrap import shorten
from typing import Any

from ddp_doctor.facts.node.env_vars import Launch, Program, Unchecked
from ddp_doctor.parse.redact import KEPT_BACK, looks_like_credential
from ddp_doctor.settings.files import ReadFile, read_none
from ddp_doctor.settings.launches.expansion import Expander, Frame
from ddp_doctor.settings.launches.shell_tree import Block, Call, Node, Piece, Script, Word
from ddp_doctor.settings.launches.values import OF_LOOP, Part

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?(\+?)=(.*)", re.ASCII | re.DOTALL)
_DECLARES = frozenset(("export", "declare", "local", "readonly", "typeset"))
_COUNTS = re.compile(r"\s*(?:\+\+|--)?\s*([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*]?=.*)?\s*", re.ASCII | re.DOTALL)
_STARTS = re.compile(
    r"^(?![ \t]*(?:#|echo\b|printf\b|pip\b))[^\n#]*?(?<![\w./-])"
    r"(?:(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate launch|deepspeed)[\"']?,?\s+(?=[-$\w./\"'\\])"
    r"|(?<=- )[\"']?torchrun[\"']?\s*$)[^\n]*$",
    re.MULTILINE,
)
_STARTER = re.compile(r"(?:srun|mpirun|mpiexec|ssh)\b")
#: An assignment in a script, and the variable of a loop.
_SETS = re.compile(r"^[ \t]*(?:(?:export[ \t]+)?(\w+)=|for[ \t]+(\w+)[ \t]+in\b)([^\n]*)", re.ASCII | re.MULTILINE)
_OF_SLURM = re.compile(r"\$\{?(SLURM_\w+)", re.ASCII)
_MOST_CALLS = 20_000
_DEEPEST = 24
_LONGEST_QUOTE = 160
#: Maximum number of unread lines to list.
_MOST_NOTED = 100
#: Maximum length of a value, and maximum number of words; an argument of a launcher is shorter.
_LONGEST_VALUE, _MOST_WORDS = 32_768, 1000
_MOST_FILES = 20
UNREAD_SCRIPT = "the script that it runs"


@dataclass(frozen=True)
class Start:
    """The program that starts the current command, possibly on several nodes."""

    program: Program
    line: int
    depth: int  # words at this depth or deeper expand on each node
    fields: dict[str, Any] = field(default_factory=dict)
    by_hand: bool = False
    typed: str = ""  # the name of the program that starts tasks, as typed
    on_one: bool = False  # it starts one of several nodes, and the next start follows
    target: str = ""  # the host of an ssh in a loop over the hosts, as typed


class Runner(Expander):
    """Interpreter of a script that collects the launches in it."""

    def __init__(self, text: str, job: Launch | None, read_file: ReadFile = read_none) -> None:
        super().__init__()
        self.lines = text.split("\n")  # followed by the lines of the files that it runs
        self._read_file = read_file
        self._files: list[tuple[int, str]] = []  # for each file, the number of lines before it, and its name
        self.job = job
        self.launches: list[Launch] = []
        self.unchecked: list[Unchecked] = []
        self.unread: list[Unchecked] = []
        self._silent, self._deep_calls, self._left = 0, 0, _MOST_CALLS
        self.bare: Launch | None = None  # a Python program that is not started on several nodes
        self.added = 0  # launches found, including repeated ones

    def read_script(self, text: str, start: Start | None) -> None:
        """Follow an entire script."""
        frame = Frame(is_batch=self.job is not None, numbers=numbers_of(self.job))
        self._run_text(text, 1, frame, start)

    def leave_if_missed(self, text: str) -> None:
        """Record a command that starts only once in a job of several tasks, or names a launcher, if no ranks start."""
        if self.bare and not (self.launches or self.unchecked):
            self.launches.append(self.bare)
        if not (self.launches or self.unchecked) and self.job is not None:  # the launch is in that script
            why = {"reason": f"{UNREAD_SCRIPT} was not read"}
            self.unchecked = [each.model_copy(update=why) for each in self.unread if each.reason == UNREAD_SCRIPT]
            self.unread = [each for each in self.unread if each.reason != UNREAD_SCRIPT]
        if not (self.launches or self.unchecked) and (found := _STARTS.search(text)):
            self.leave(text.count("\n", 0, found.start()) + 1, "nothing in the file runs it")

    def _run_text(self, text: str, line: int, frame: Frame, start: Start | None) -> None:
        if self._deep_calls >= _DEEPEST:
            return
        script = Script(text, line)
        self._deep_calls += 1
        self._run(script.nodes, frame, start)
        self._deep_calls -= 1
        for number, why in script.unread:
            self._note(self.unread, number, why)

    def leave(self, line: int, why: str) -> None:
        """Note that this line starts ranks and was not understood."""
        self._note(self.unchecked, line, why)

    def note_unread(self, line: int, why: str) -> None:
        """Note that this line was not read."""
        self._note(self.unread, line, why)

    def _note(self, to: list[Unchecked], line: int, why: str) -> None:
        if self._silent or len(to) >= _MOST_NOTED:
            return
        file, number = self.located(line)
        noted = Unchecked(line=number, quote=self.quote(line), reason=why, file=file)
        if noted not in to:
            to.append(noted)

    def located(self, line: int) -> tuple[str, int]:
        """Return the name of the file that a line is in, empty for the text itself, and its number in that file."""
        before, name = next((each for each in reversed(self._files) if each[0] < line), (0, ""))
        return name, line - before

    def quote(self, line: int) -> str:
        """Return a line of the text or of a file that it runs, without credentials."""
        text = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        while text.endswith("\\") and line < len(self.lines) and len(text) < _LONGEST_QUOTE:
            text, line = f"{text[:-1].rstrip()} {self.lines[line].strip()}", line + 1
        return quoted(text.rstrip("\\").rstrip())

    # --- blocks ---

    def _run(self, nodes: Sequence[Node], frame: Frame, start: Start | None) -> None:
        is_test, before = False, None
        for node in nodes:
            before, node = node, _with_input(node, before)  # noqa: PLW2901 - the node with what is piped into it
            self._left -= 1
            if self._left == 0:
                self._note(self.unread, node.line, "the rest of the script, which is too long")
            if self._left <= 0:
                return
            sometimes = node.before == "||" or (node.before == "&&" and is_test)
            frame.sometimes += sometimes
            frame.background += node.in_background
            if isinstance(node, Block):
                self._block(node, frame, start)
                is_test = False
            elif sometimes and _only_assigns(node):
                bodies: list[list[Node]] = [[replace(node, before="")], []]
                self._branches(Block("if", node.line, bodies=bodies), frame, start)
            else:
                self._call(node, frame, start)
                is_test = _is_test(node)
            frame.sometimes -= sometimes
            frame.background -= node.in_background

    def _block(self, block: Block, frame: Frame, start: Start | None) -> None:
        if block.kind == "function":
            frame.functions[block.name] = block
        elif block.kind == "if":
            frame.sometimes += 1
            self._branches(block, frame, start)
            frame.sometimes -= 1
        elif block.kind == "loop":
            self._loop(block, frame, start)
        else:
            for body in block.bodies:
                self._run(body, frame, start)

    def _branches(self, block: Block, frame: Frame, start: Start | None) -> None:
        ends = []
        for body in block.bodies:
            branch = replace(
                frame,
                variables=ChainMap({}, frame.variables),
                exported=set(frame.exported),
                arrays={name: list(items) for name, items in frame.arrays.items()},
                functions=dict(frame.functions),
            )
            self._run(body, branch, start)
            ends.append(branch)
        for end in ends:
            frame.exported |= end.exported
            frame.functions |= end.functions
        changed = [end.variables.maps[0] for end in ends if isinstance(end.variables, ChainMap)]
        for name in {name for each in changed for name in each}:
            found = {each.get(name, frame.variables.get(name)) for each in changed}
            shown = self.values.token(Part("any", f"${name}", frame.depth)) if len(found) > 1 else None
            frame.variables[name] = shown or next(filter(None, found), "")
        for name in {name for end in ends for name in end.arrays}:
            several = [end.arrays.get(name, []) for end in ends]
            is_same = all(items == several[0] for items in several)
            open_part = [self.values.token(Part("any", f"${{{name}[@]}}", frame.depth))]
            frame.arrays[name] = several[0] if is_same else open_part

    def _loop(self, block: Block, frame: Frame, start: Start | None) -> None:
        """Follow the body twice: the first pass shows which variables it changes."""
        items = self.words(block.head[2:], frame) if len(block.head) > 2 else []
        names = [self.word(block.head[0], frame)] if len(block.head) > 1 else []
        if len(block.head) == 1 and (counted := _COUNTS.match(block.head[0][0].text.split(";")[0])):
            names = [counted[1]]
        is_known = items and not any(map(self.values.only, items))
        for name in names:
            frame.variables[name] = self.values.token(Part("node", f"${name}", OF_LOOP))
        before, arrays = dict(frame.variables), {name: list(found) for name, found in frame.arrays.items()}
        frame.loops += 1
        self._silent += 1
        for body in block.bodies:
            self._run(body, frame, start)
        self._silent -= 1
        for name, value in frame.variables.items():
            if name in before and before[name] != value and name not in names:
                frame.variables[name] = self.values.token(Part("node", f"${name}", OF_LOOP))
        for name, found in frame.arrays.items():
            if found != arrays.get(name, found):
                frame.arrays[name] = [self.values.token(Part("any", f"${{{name}[@]}}", frame.depth))]
        for body in block.bodies if frame.loops <= 4 else ():
            self._run(body, frame, replace(start) if start else None)
        frame.loops -= 1
        for name in names if not is_known else ():
            frame.variables.pop(name, None)

    # --- commands ---

    def _call(self, call: Call, frame: Frame, start: Start | None) -> None:
        if call.is_broken:
            if _STARTS.search(self.quote(call.line)) or _STARTER.match(self.quote(call.line)):
                self.leave(call.line, "a quote or bracket in it is not closed")
            return
        count = next((at for at, word in enumerate(call.words) if not _assigned(word)), len(call.words))
        if count == len(call.words):
            for word in call.words:
                self._assign(word, frame)
            return
        own = frame
        if count:
            own = replace(frame, variables=dict(frame.variables), exported=set(frame.exported))
            for word in call.words[:count]:
                own.exported.add(self._assign(word, own))
        words = self.words(call.words[count:], own)
        name = words[0] if words else ""
        if name in _DECLARES:
            self._declare(call.words[count + 1 :], frame, exports=name == "export" or "-x" in words[1:2])
        elif name in frame.functions:
            self._function(name, words[1:], own, start, frame)
        elif words and not self._builtin(name, words, call, frame, start):
            self.start(words, own, start, call)
        if call.output and call.document is None and (file := self.word(call.output, frame)):
            frame.files[posixpath.normpath(file)] = ""  # the output replaces the previous content

    def _assign(self, word: Word, frame: Frame) -> str:
        found = _assigned(word)
        if found is None:
            return ""
        name, plus = found[1], found[2]
        array = next((piece for piece in word if piece.kind == "array"), None)
        if array is not None:
            items = (frame.arrays.get(name, []) if plus else []) + self.words(array.words, frame)
            open_part = self.values.token(Part("any", f"${{{name}[@]}}", frame.depth))
            frame.arrays[name] = items if len(items) <= _MOST_WORDS else [open_part]
            frame.variables.pop(name, None)
        elif name in frame.arrays and plus:
            frame.arrays[name].append(self.word((Piece("text", found[3]), *word[1:]), frame))
        elif frame.loops and any(piece.kind == "sum" and re.search(rf"\b{name}\b", piece.text) for piece in word):
            frame.variables[name] = self.values.token(Part("node", f"${name}", OF_LOOP))  # r=$((r + 1))
        else:
            value = self.word((Piece("text", found[3]), *word[1:]), frame)
            value = (self.variable(name, frame) if plus else "") + value
            too_long = len(value) > _LONGEST_VALUE
            frame.variables[name] = self.values.token(Part("any", f"${name}", frame.depth)) if too_long else value
            frame.arrays.pop(name, None)
        return name

    def _declare(self, words: Sequence[Word], frame: Frame, *, exports: bool) -> None:
        for word in words:
            name = self._assign(word, frame) or self.word(word, frame)
            if exports and name:
                frame.exported.add(name)
                if name not in frame.variables and re.fullmatch(r"[A-Za-z_]\w*", name):
                    frame.variables[name] = self.variable(name, frame)

    def _function(self, name: str, arguments: list[str], own: Frame, start: Start | None, frame: Frame) -> None:
        if self._deep_calls >= _DEEPEST:
            return
        numbered = {str(at): value for at, value in enumerate(arguments, 1)}
        kept = {key: frame.variables.get(key) for key in numbered}
        own.variables.update(numbered)
        own.arrays["@"] = own.arrays["*"] = arguments
        self._deep_calls += 1
        self._run(frame.functions[name].bodies[0], own, start)
        self._deep_calls -= 1
        for key, value in kept.items():
            own.variables.pop(key, None)
            if value is not None:
                own.variables[key] = value

    def _builtin(self, name: str, words: list[str], call: Call, frame: Frame, start: Start | None) -> bool:
        """Return True if this is a builtin of the shell, or a command that only writes or prints."""
        if name in ("cat", "tee") and call.document is not None:
            file = self.word(call.output, frame) if call.output else words[-1] if name == "tee" else ""
            text = self.document(call, frame)
            frame.files[posixpath.normpath(file or ".")] = f"{call.line + 1}\n{text}"
        elif name in ("source", "."):
            if not self._run_file(words[1:], frame, start):
                self._note(self.unread, call.line, "the file that it includes")
        elif name == "eval":
            self._run_text(" ".join(words[1:]), call.line, frame, start)
        elif name in ("mapfile", "readarray", "read") and len(words) > 1:
            self._read_into(name, words, call, frame)
        elif name == "unset":
            for each in words[1:]:
                frame.variables.pop(each, None)
                frame.arrays.pop(each, None)
        elif name == "set":
            frame.exports_all = "-a" in words or "allexport" in words or frame.exports_all
        elif name in ("((", "let") and (counted := _COUNTS.fullmatch(call.words[-1][0].text)):
            value = self.values.derived(self.variable(counted[1], frame), f"${counted[1]}")
            in_loop = self.values.token(Part("node", f"${counted[1]}", OF_LOOP))
            frame.variables[counted[1]] = in_loop if frame.loops else value
        else:
            return name in ("echo", "printf", "cat", "tee", "((", "let", "[[", "[", "test", "shift", "trap", "alias")
        return True

    def _read_into(self, name: str, words: list[str], call: Call, frame: Frame) -> None:
        value = self.word(call.source, frame) if call.source else ""
        value = value or self.values.token(Part("any", f"${words[-1]}", frame.depth))
        if name != "read":
            frame.arrays[words[-1]] = [value]
            return
        hosts = self.values.only(value)
        names = [word for word in words[1:] if not word.startswith("-")]
        for at, each in enumerate(names):
            is_first = at == 0 and hosts is not None and hosts.means == "hosts"
            frame.variables[each] = self.values.derived(value, f"${each}", "first-host" if is_first else "")

    def _run_file(self, words: Sequence[str], frame: Frame, start: Start | None) -> bool:
        """Follow a file with its arguments. Return False if its text is unknown."""
        found = self.file(words[0], frame) if words else None
        if found is None:
            return False
        if len(words) > 1:
            frame.variables.update({str(at): word for at, word in enumerate(words) if at})
            frame.arrays["@"] = frame.arrays["*"] = [*words[1:]]
        self._run_text(found[1], found[0], frame, start)
        return True

    def document(self, call: Call, frame: Frame) -> str:
        """Return the text of a here-document. Variables that only the document sets expand before, as unset."""
        text = call.document or ""
        if call.is_literal:
            return text
        given = {found[1] or found[2]: found[3] or "" for found in _SETS.finditer(text)}
        early = {name for name, value in given.items() if not re.search(rf"\b{name}\b", value)} - frame.arrays.keys()
        if "#SBATCH" in text and not frame.is_batch:
            early |= set(_OF_SLURM.findall(text))
        early = set() if self.unread else early - frame.variables.keys()
        unset = {name: self.values.token(Part("any", f"${name}", frame.depth, "unset")) for name in early}
        return self.text(text, replace(frame, variables=ChainMap(unset, frame.variables)) if unset else frame)

    def file(self, name: str, frame: Frame) -> tuple[int, str] | None:
        """Return the first line and the text of a file that the script writes, or that can be read; or None."""
        path = posixpath.normpath(name)
        if path not in frame.files and len(self._files) < _MOST_FILES:
            folder, _, rest = name.partition("/")
            shown = rest if self.values.only(folder) else name  # $(dirname "$0")/run.sh
            text = self._read_file(shown) if shown and self.values.literal(shown) == shown else None
            if text is not None:
                self._files.append((len(self.lines), shown))
                frame.files[path] = f"{len(self.lines) + 1}\n{self.values.cleaned(text)}"
                self.lines += text.split("\n")
        line, _, text = frame.files.get(path, "").partition("\n")
        return (int(line), text) if line else None

    @abstractmethod
    def start(self, words: list[str], frame: Frame, start: Start | None, call: Call) -> None:
        """Follow a command that may start something."""


def quoted(line: str) -> str:
    """Return a line as a report quotes it: shortened, and without credentials."""
    return KEPT_BACK if looks_like_credential(line) else shorten(line, _LONGEST_QUOTE)


def _assigned(word: Word) -> re.Match[str] | None:
    first = word[0] if word else None
    return ASSIGNMENT.fullmatch(first.text) if first and first.kind == "text" and not first.quoted else None


def _with_input(node: Node, before: Node | None) -> Node:
    """Return the command of ``cat <<EOF | sbatch`` with the here-document of the command in front of it."""
    if not isinstance(node, Call) or not isinstance(before, Call) or node.before != "|" or before.document is None:
        return node
    return replace(node, document=before.document, is_literal=before.is_literal, line=before.line)


def _only_assigns(call: Call) -> bool:
    """Return True for ``A=1`` and ``export A=1``."""
    first = call.words[0][0].text if call.words and call.words[0] else ""
    return first in _DECLARES or (bool(call.words) and all(map(_assigned, call.words)))


def _is_test(call: Call) -> bool:
    first = call.words[0][0].text if call.words and call.words[0] else ""
    return first in ("[", "[[", "test", "((", "!") or first in ("command", "grep", "which")


def numbers_of(job: Launch | None) -> dict[str, int]:
    """Return the numbers of nodes and tasks that SLURM sets for a job."""
    if job is None:
        return {}
    nodes = job.nodes[0] if job.nodes and job.nodes[0] == job.nodes[1] else None
    tasks = job.tasks or (nodes * (job.tasks_per_node or 1) if nodes and job.gpus_per_task is None else None)
    found = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), tasks),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), job.gpus_per_node),
        "SLURM_NTASKS_PER_NODE": job.tasks_per_node,
    }
    return {name: number for name, number in found.items() if number}
