"""Expand the words of a script, if their values are known before it runs."""

from __future__ import annotations

import ast
import operator
import posixpath
import re
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field

from ddp_doctor.facts.node.env_vars import ArgumentMeaning
from ddp_doctor.parse.hostlist import expand
from ddp_doctor.settings.launches.shell_tree import Block, Call, Node, Piece, Script, Word
from ddp_doctor.settings.launches.values import Kind, Part, Values

#: Variables that SLURM, MPI and Kubernetes set to a different value in each task or pod …
_OF_NODE = frozenset(
    (
        *("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID", "SLURM_GTIDS", "SLURMD_NODENAME"),
        *("HOSTNAME", "HOST", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"),
        *("PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK", "JOB_COMPLETION_INDEX", "POD_NAME"),
        *("POD_IP", "MY_POD_IP", "NODE_NAME", "LWS_WORKER_INDEX", "SLURM_ARRAY_TASK_ID", "PBS_NODENUM", "LSB_NODEID"),
    )
)
#: … and variables with a new value each time a shell reads them.
_RANDOM = frozenset(("RANDOM", "SRANDOM", "$", "BASHPID", "EPOCHREALTIME", "EPOCHSECONDS", "SECONDS"))
_MEANINGS: dict[str, ArgumentMeaning] = {
    **dict.fromkeys(("HOSTNAME", "HOST", "SLURMD_NODENAME", "NODE_NAME", "POD_IP", "MY_POD_IP"), "own-name"),
    **dict.fromkeys(("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"), "local-rank"),
    **dict.fromkeys(("SLURM_SUBMIT_HOST", "PBS_O_HOST", "LSB_SUB_HOST"), "submit-host"),
    **dict.fromkeys(("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"), "first-host"),
    **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"), "hosts"),
}
#: The meaning of an index into a list of hosts.
_PLACES: dict[str, ArgumentMeaning] = {"0": "first-host", "-1": "last-host"}
#: Prefix of variables that exist only in a step of srun (man srun, man sbatch: output environment variables).
_OF_STEP = "SLURM_STEP_"
_PARAMETER = re.compile(r"([!#]?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.ASCII | re.DOTALL)
_NAMES = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?", re.ASCII)
_SUM = re.compile(r"[\d\s+*/%()-]{1,100}", re.ASCII)
_BIGGEST = 10**12
_DRAWS = frozenset(("shuf", "uuidgen", "mktemp", "od", "openssl", "comm"))
_DRAWS_IN_PYTHON = re.compile(r"socket|random|uuid|portpicker|find_free|getsockname|bind\(")
_TIME = re.compile(r"\+.*%(?:s|N|S|T)")
_FIRST = re.compile(r"head|sed (?:-n )?1?[pq]|awk (?:NR ?== ?1|\{ ?print \$1|FNR)|cut -d ?[, ] -f ?1$")
_LAST = re.compile(r"tail (?:-n ?)?-?1$|sed -n \$p")
_NARROWS = frozenset(("awk", "cut", "head", "sed", "tr", "grep", "xargs", "tail"))
_DEEPEST = 12
#: Maximum number of words; longer commands do not start a job.
_MOST_WORDS = 1000
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


@dataclass
class Frame:
    """A shell: its variables and its nesting depth."""

    variables: MutableMapping[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    functions: dict[str, Block] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # written by here-documents
    depth: int = 0
    sometimes: int = 0  # number of conditions around the current command
    loops: int = 0
    background: int = 0  # number of enclosing commands followed by ``&``
    exports_all: bool = False
    numbers: dict[str, int] = field(default_factory=dict)  # set by SLURM: SLURM_NNODES
    is_batch: bool = False  # the script that sbatch runs, not a step of it
    container: str = ""  # the program that runs it in a container with a separate network

    def inner(self, depth: int, *, hands_on: bool = True) -> Frame:
        """Return the shell that a command starts; with ``hands_on``, it inherits the environment."""
        names = self.variables.keys() if self.exports_all else self.exported & self.variables.keys()
        known = {name: self.variables[name] for name in names} if hands_on else {}
        inner = Frame(known, set(known), files=self.files, depth=depth, sometimes=self.sometimes, numbers=self.numbers)
        inner.background, inner.container = self.background, self.container
        if hands_on:
            inner.functions = {name: self.functions[name] for name in self.exported & self.functions.keys()}
        return inner


class Expander:
    """An expander of words; unknown parts become tokens."""

    def __init__(self) -> None:
        self.values = Values()
        self._deep = 0

    def words(self, words: Sequence[Word], frame: Frame) -> list[str]:
        """Expand the words of a command. An unquoted variable or an array may become several words."""
        found: list[str] = []
        for word in words:
            if len(found) > _MOST_WORDS:
                break
            found += self._fields(word, frame)
        return found

    def _fields(self, word: Word, frame: Frame) -> list[str]:
        if len(word) == 1 and word[0].kind == "text":
            text = word[0].text
            return [text] if word[0].quoted or "{" not in text else _braces(text)
        listed = [piece for piece in word if piece.kind != "text" or piece.text]
        if len(listed) == 1 and listed[0].kind == "variable" and (several := self._several(listed[0].text, frame)):
            return [part for item in several for part in ([item] if listed[0].quoted else item.split())]
        text, is_split, quoted = "", False, False
        for piece in word:
            value = self.piece(piece, frame)
            quoted = quoted or piece.quoted
            if piece.kind in ("variable", "command") and not piece.quoted and re.search(r"\s", value):
                is_split = True
                value = re.sub(r"\s+", "\0", value)
            text += value
        if is_split:
            return [part for part in text.split("\0") if part]
        return [text] if text or quoted else []

    def word(self, word: Word, frame: Frame) -> str:
        """Return the text of a word that is not split."""
        return "".join(self.piece(piece, frame) for piece in word)

    def _several(self, text: str, frame: Frame) -> list[str]:
        found = re.fullmatch(r"\{?(!?)(\w+)\[[@*]\](?::\d+(?::\d+)?)?\}?", text)
        if found and found[2] in frame.arrays:
            items = frame.arrays[found[2]]
            return [str(at) for at in range(len(items))] if found[1] else list(items)
        if text in ("@", "*") and text in frame.arrays:
            return list(frame.arrays[text])
        return []

    def piece(self, piece: Piece, frame: Frame) -> str:
        """Return the value of a piece of a word."""
        if piece.kind == "text":
            return piece.text
        if self._deep >= _DEEPEST:
            return self.values.token(Part("any", "$(...)", frame.depth))
        self._deep += 1
        try:
            if piece.kind == "variable":
                return self._parameter(piece.text, frame)
            if piece.kind == "sum":
                return self._sum(piece.text, frame)
            return self._substitution(piece.text, frame)
        finally:
            self._deep -= 1

    # --- variables ---

    def variable(self, name: str, frame: Frame) -> str:
        """Return the value of a variable."""
        if name in frame.variables:
            return frame.variables[name]
        if frame.arrays.get(name):
            return frame.arrays[name][0]
        return self._from_outside(name, frame)

    def _from_outside(self, name: str, frame: Frame) -> str:
        means = _MEANINGS.get(name, "")
        if name in frame.numbers:
            return str(frame.numbers[name])
        kind: Kind = "node" if name in _OF_NODE else "random" if name in _RANDOM else "given"
        if kind == "given" and name.startswith("SLURM_"):
            kind = "same"
        return self.values.token(Part(kind, f"${name}", frame.depth, means))

    def _is_known(self, name: str, frame: Frame) -> bool:
        """Return True if a name is certainly set."""
        if name in frame.variables:
            return bool(frame.variables[name])
        is_slurm = name.startswith("SLURM_") and bool(frame.is_batch or frame.numbers)
        return name in frame.arrays or name in frame.numbers or name in _OF_NODE - {"HOST"} or is_slurm

    def _parameter(self, text: str, frame: Frame) -> str:
        found = _PARAMETER.fullmatch(text)
        if found is None:
            return self.values.token(Part("any", f"${{{text}}}", frame.depth))
        sign, name, index, rest = found.groups()
        items = frame.arrays.get(name) if index in ("@", "*") else None
        if sign == "#" and items and not any(map(self.values.only, items)):
            return str(len(items))
        if sign or rest.startswith((":+", "+")):
            return self.values.token(Part("same" if sign == "#" else "any", f"${{{text}}}", frame.depth))
        if rest.startswith((":-", "-", ":=", "=")):
            value = self._default(name, rest.lstrip(":")[1:], frame)
            if "=" in rest[:2]:
                frame.variables[name] = value
            return value
        value = self._element(name, index, frame) if index is not None else self.variable(name, frame)
        if not rest or rest.startswith((":?", "?")):
            return value
        return self._edited(name, rest, value)

    def _edited(self, name: str, rest: str, value: str) -> str:
        shown = f"${{{name}{self.values.shown(rest)}}}"
        literal = self.values.literal(value)
        if literal is not None and (found := re.fullmatch(r"(##?|%%?)(.)\*|(##?|%%?)\*(.)", rest)):
            sign = found[2] or found[4]
            at = literal.find(sign) if (found[1] or found[3]) in ("%%", "#") else literal.rfind(sign)
            return literal if at < 0 else literal[:at] if found[1] else literal[at + 1 :]
        means = next((part.means for part in self.values.parts(value)), "")
        narrowed: ArgumentMeaning = "first-host" if means == "hosts" and rest.startswith("%%") else ""
        return self.values.derived(value, shown, narrowed)

    def _default(self, name: str, text: str, frame: Frame) -> str:
        if self._is_known(name, frame) and not (frame.is_batch and name.startswith(_OF_STEP)):
            return self.variable(name, frame)
        quoted = re.fullmatch(r"\s*([\"'])(.*)\1\s*", text, re.DOTALL)
        default = self.text(quoted[2] if quoted else text, frame)
        if frame.is_batch and name.startswith(_OF_STEP):
            return default
        return " ".join(self._by_default(word, name, frame) for word in default.split(" "))

    def _by_default(self, word: str, name: str, frame: Frame) -> str:
        literal = self.values.literal(word)
        if literal is not None:
            return self.values.token(Part("default", literal, unless=name)) if literal else ""
        is_plain = all(part.kind in ("given", "any", "same", "default") for part in self.values.parts(word))
        return word if is_plain else self.values.token(Part("given", f"${{{name}:-...}}", frame.depth))

    def text(self, text: str, frame: Frame) -> str:
        """Expand the variables of a text, for example a here-document."""
        if "$" not in text and "`" not in text:
            return text
        safe = text.replace('"', '\\"')
        script = Script(f'"{safe}"')
        calls = [node for node in script.nodes if isinstance(node, Call)]
        if script.unread or len(calls) != 1 or len(calls[0].words) != 1:
            return self.values.token(Part("any", text[:40], frame.depth))
        return self.word(calls[0].words[0], frame)

    def _element(self, name: str, index: str, frame: Frame) -> str:
        items = frame.arrays.get(name)
        number = self._sum(index, frame) if index not in ("@", "*") else ""
        if items is None:
            found = self.variable(name, frame) if name in frame.variables else ""
            items = [found] if found else None
        shown = f"${{{name}[{index}]}}"
        if items is None:
            return self.values.token(Part("any", shown, frame.depth))
        if index in ("@", "*"):
            return " ".join(items)
        hosts = self.values.only(items[0]) if len(items) == 1 else None
        literal = self.values.literal(number)
        if hosts is not None and hosts.means == "hosts":
            return self.values.derived(items[0] + number, shown, _PLACES.get(literal or "", ""))
        if literal is None:
            return self.values.derived(number, shown)
        at = int(literal) if literal.lstrip("-").isdecimal() and len(literal) < 6 else len(items)
        return items[at] if -len(items) <= at < len(items) else ""

    def _sum(self, text: str, frame: Frame) -> str:
        """Return the value of $((…)), computed if all numbers in it are known."""

        def value_of(found: re.Match[str]) -> str:
            return self.variable(found[1], frame)

        inner = self.text(text, frame) if "$(" in text or "`" in text or "${" in text else text
        value = _NAMES.sub(value_of, inner)
        literal = self.values.literal(value)
        if literal is not None and not re.search(r"[^\d\s+*/%()-]", literal):
            found = _worked_out(literal)
            return self.values.token(Part("any", f"$(({text}))", frame.depth)) if found is None else str(found)
        return self.values.derived(value, f"$(({self.values.shown(inner)}))")

    # --- $(…) ---

    def _substitution(self, text: str, frame: Frame) -> str:
        shown = f"$({' '.join(self.values.shown(text).split())})"
        script = Script(text)
        value = self._output(script.nodes, frame, shown)
        return self.values.token(Part("any", shown, frame.depth)) if value is None else value

    def _output(self, nodes: Sequence[Node], frame: Frame, shown: str) -> str | None:
        """Return the output of the last of these pipelines."""
        pipelines: list[list[Call]] = []
        fallback = ""
        for node in nodes:
            if not isinstance(node, Call) or not node.words:
                return None
            if node.before == "|" and pipelines:
                pipelines[-1].append(node)
            elif node.before == "||" and pipelines:
                words = self.words(node.words, frame)
                fallback = " ".join(words[1:]) if words[:1] == ["echo"] else ""
            else:
                pipelines.append([node])
        value = self._printed(pipelines[-1], frame, shown) if pipelines else None
        if value is None or not fallback or self.values.literal(value) is not None:
            return value
        return self.values.replaced(value, fallback=self.values.shown(fallback))

    def _printed(self, calls: Sequence[Call], frame: Frame, shown: str) -> str | None:
        words = self.words(calls[0].words, frame)
        rest = [" ".join(self.words(call.words, frame)) for call in calls[1:]]
        value = self._source(words, frame, shown)
        for command in rest if value is not None else ():
            value = self._filtered(value or "", command, shown)
        return value

    def _source(self, words: list[str], frame: Frame, shown: str) -> str | None:
        while words and "=" in words[0]:
            words = words[1:]
        name = posixpath.basename(words[0]) if words else ""
        if name in frame.functions and self._deep < _DEEPEST:
            self._deep += 1
            found = self._output(frame.functions[name].bodies[0], frame, shown)
            self._deep -= 1
            return found
        if words[:1] == ["which"] or words[:2] == ["command", "-v"]:
            return words[-1]
        if name in ("srun", "ssh", "timeout", "env", "sudo", "command"):
            at = next((at for at, word in enumerate(words) if posixpath.basename(word) in _PRINT_HOSTS), None)
            value = self._source(words[at:], frame, shown) if at else None
            part = self.values.only(value) if value else None
            if part is None or name not in ("srun", "ssh"):
                return value
            target = " ".join(words[1:at])
            on_last = any(each.means == "last-host" for each in self.values.parts(target))
            means = part.means if part.means != "own-name" else "last-host" if on_last else "first-host"
            return self.values.token(Part("same", shown, frame.depth, means))
        if name in ("echo", "printf"):
            return " ".join(word for word in words[1:] if word not in ("-n", "-e", "%s", "%s\\n"))
        return self._named(name, words[1:], frame, shown)

    def _named(self, name: str, arguments: list[str], frame: Frame, shown: str) -> str | None:
        options, line = {word for word in arguments if word.startswith("-")}, " ".join(arguments)
        kind: Kind = "any"
        means: ArgumentMeaning = ""
        if name == "hostname":
            addresses = options & {"-I", "--all-ip-addresses"}
            kind, means = "node", "own-addresses" if addresses else "own-name"
            means = "own-address" if options & {"-i", "--ip-address"} else means
        elif name in ("ip", "ifconfig") or (name, line) in (("uname", "-n"), ("cat", "/etc/hostname")):
            kind, means = "node", "own-name"
        elif name == "scontrol" and "hostname" in line:
            lists = [word for word in arguments if word not in ("show", "hostname", "hostnames", "-o")]
            literal = self.values.literal(lists[0]) if lists else None
            if literal:
                return "\n".join(_hosts(literal))
            kind, means = ("any", "unset") if self._meaning(line) == "unset" else ("same", "hosts")
        elif name in ("getent", "dig", "nslookup", "resolveip", "host"):
            return self.values.derived(line, shown, self._meaning(line))
        elif name in _DRAWS or (name == "date" and _TIME.search(line)) or "free_port" in name:
            kind = "random"
        elif name.startswith("python") and _DRAWS_IN_PYTHON.search(line):
            kind = "random" if "gethostbyname" not in line else "node"
        return self.values.token(Part(kind, shown, frame.depth, means))

    def _meaning(self, value: str) -> ArgumentMeaning:
        return next((part.means for part in self.values.parts(value) if part.means), "")

    def _filtered(self, value: str, command: str, shown: str) -> str:
        name = command.split(" ", maxsplit=1)[0]
        means = self._meaning(value)
        if means == "hosts":
            picked = "first-host" if _FIRST.match(command) else "last-host" if _LAST.match(command) else ""
            return self.values.replaced(value, means=picked or means, text=shown)
        literal = self.values.literal(value)
        if literal is not None:
            if "\n" not in literal.strip() and name in ("head", "tail", "sort", "tr"):
                return literal.strip()
            return literal.split("\n")[0] if _FIRST.match(command) else self.values.token(Part("same", shown))
        if means == "own-addresses" and name in _NARROWS:
            return self.values.replaced(value, means="own-name", text=shown)
        return self.values.replaced(value, text=shown) if self.values.only(value) else self.values.derived(value, shown)


_PRINT_HOSTS = frozenset(("hostname", "uname", "ip", "scontrol", "ifconfig"))


def _hosts(text: str) -> list[str]:
    try:
        return list(expand(text))
    except ValueError:
        return [text]


def _braces(text: str) -> list[str]:
    """Expand ``{0..3}`` and ``n{1,2}``; return other words unchanged."""
    if (found := re.fullmatch(r"(.*?)\{(\d{1,4})\.\.(\d{1,4})\}(.*)", text)) and int(found[2]) <= int(found[3]):
        return [f"{found[1]}{at}{found[4]}" for at in range(int(found[2]), int(found[3]) + 1)]
    if found := re.fullmatch(r"([^{}$]*)\{([^{}]*,[^{}]*)\}([^{}]*)", text):
        return [f"{found[1]}{part}{found[3]}" for part in found[2].split(",")]
    return [text]


def _worked_out(text: str) -> int | None:
    """Return the value of an arithmetic expression, or None if a shell would reject it."""
    if not _SUM.fullmatch(text) or "**" in text or "//" in text:
        return None
    try:
        found = _number(ast.parse(text.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None
    return found


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < _BIGGEST:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left), _number(node.right)
        if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](left, right)
    raise ValueError
