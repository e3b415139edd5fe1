"""Find the variables that a script sets and exports, command by command, without running it.

export NCCL_DEBUG=INFO                   NCCL_DEBUG, for every later command
NCCL_DEBUG=INFO python train.py          NCCL_DEBUG, for this command
NCCL_DEBUG=INFO                          a shell variable, unless it is or will be exported
set -a                                   all later ones are exported
srun --export=ALL,NCCL_DEBUG=INFO …      also -e, --env, -x, -genv
bash -c "export NCCL_DEBUG=INFO; …"      what the inner shell does
set -gx NCCL_DEBUG INFO                  fish
"""

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ddp_doctor.facts.node.env_vars import Path
from ddp_doctor.settings.text.shell_words import Branches, Word, commands

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_LISTED = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^,'\"]|['\"])+")
#: Words before a command that are not the command itself.
_LEADS = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{")) | frozenset(
    ("time", "exec", "nohup", "sudo", "command", "+", "++", "$")
)
#: Commands that print or search text that looks like a setting …
_PRINTERS = frozenset(("echo", "printf", "cat", "grep", "egrep", "rg", "sed", "awk", "test", "[", "[["))
#: … and lines of an image whose environment is not kept.
_OF_LAYERS = frozenset(("RUN", "CMD", "ENTRYPOINT", "ARG", "LABEL"))
_SHELLS = frozenset(("bash", "sh", "dash", "zsh", "ksh"))
_REMOTE = frozenset(("ssh", "pdsh", "clush"))
_SLURM = frozenset(("srun", "sbatch", "salloc"))
_FLAGS = frozenset(("-x", "-e", "--env", "--export", "-genv", "-env"))
#: Options of ``env`` that take a word.
_OF_ENV = frozenset(("-u", "--unset", "-C", "--chdir"))
_JOINED = re.compile(r"(?:--export[= ]|--env[= ]|-[ex] ?(?=[A-Za-z_]\w*=))(.*)", re.DOTALL)
#: The next two words are a name and its value.
_PAIRS = frozenset(("-genv", "--setenv"))
#: Later shells and jobs read the settings that a command writes to these files.
_KEPT = re.compile(r"nccl\.conf|\.deepspeed_env|\.bashrc|\.(?:bash_)?profile|/etc/(?:environment|profile)")
_WRITES = re.compile(r"(?:>|\btee\b)[^|;&\n]*$")
#: Maximum distance of the sign and the file's name; without it, a search costs the square of a line's length.
_LONGEST_PATH = 200
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: ``$NAME``, ``${NAME}`` and ``${NAME:-text}``, without other text.
_EXPANDED = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?[-=][^{}]*)?\})", re.ASCII)
#: Maximum nesting of scripts in scripts.
_DEEPEST = 2

_NOT_EXPORTED = "is not exported, so no command sees it"
_WITH_A_SPACE = "has a space next to its =, so it is not set"
#: fish: ``set -x NAME value``, optionally with -g, -U, -l.
_FISH_EXPORT = re.compile(r"-[gUl]*x[gUl]*")


@dataclass(frozen=True)
class Given:
    """A value assigned to a name; ``void`` is the reason if it does not count."""

    name: str
    value: str
    line: int
    depends_on: str | None = None
    void: str | None = None
    path: Path = ()  # the branch that it is in
    own: bool = False  # it was for one command, which has ended


#: Commands whose settings remain after they end.
_EXPORTS = frozenset(("export", "declare", "typeset", "set", "setenv", "ENV", "unset", "sbatch"))
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)


@dataclass
class Shell:
    """A simulated shell that collects its exports in order."""

    is_wanted: Callable[[str], bool]
    exports_all: bool  # a listing, whose user exports all of it
    given: list[Given] = field(default_factory=list)
    exported: set[str] = field(default_factory=set)
    commands_in: dict[str, tuple[str, int]] = field(default_factory=dict)  # CMD="mpirun -x …", and its line
    ran: set[tuple[str, int]] = field(default_factory=set)
    branches: Branches = field(default_factory=Branches)
    signs: str = "\n"  # the operators after the last command

    def give(self, name: str, value: str, line: int, depends_on: str | None = None) -> None:
        """Record a value that some command gets."""
        if self.is_wanted(name):
            self.given.append(Given(name, value, line, depends_on, path=self.branches.path))

    def _hand_on(self, name: str, value: str, line: int, depends_on: str | None) -> None:
        """Pass on a value that may only reference another variable: ``-e NCCL_DEBUG=$NCCL_DEBUG``."""
        found = _EXPANDED.fullmatch(value) if depends_on else None
        name_of_value = (found[1] or found[2]) if found else ""
        known = next((given for given in reversed(self.given) if given.name == name_of_value), None)
        if known and known.void in (None, _NOT_EXPORTED):
            value, depends_on = known.value, known.depends_on
        self.give(name, value, line, depends_on)

    def run(self, command: Sequence[Word], line: int, depth: int = 0) -> None:
        """Run a command; the line numbers of its words are relative to ``line``."""
        words = list(command)
        while words and words[0].text in _LEADS:
            del words[0]
        count = next((at for at, word in enumerate(words) if not _assignment(word)), len(words))
        if count == len(words):
            for word in words:
                self._set(word, line)
                found = _assignment(word)
                if found and " " in found[3]:  # a command or its options, as in ``$CMD`` and ``mpirun $OPTIONS``
                    self.commands_in[found[1]] = (found[3], line + word.line)
            return
        before = len(self.given)
        for word in words[:count]:
            self._assign(word, line)
        self._command(words[count:], line, depth)
        self._run_remembered(words[count:], depth)
        if words[count].text not in _EXPORTS:
            self.given[before:] = [replace(given, own=True) for given in self.given[before:]]

    def keep(self, command: Sequence[Word], line: int) -> None:
        """Read a command whose output goes to a file that later jobs read."""
        if command and posixpath.basename(command[0].text) in ("echo", "printf"):
            exports_all, self.exports_all = self.exports_all, True
            for word in command[1:]:
                for inner in commands(word.text):
                    self.run(inner, line + word.line, _DEEPEST)
            self.exports_all = exports_all

    def _run_remembered(self, words: Sequence[Word], depth: int) -> None:
        if not words or depth >= _DEEPEST or words[0].text in _PRINTERS:
            return
        for word in words:
            found = _VARIABLE.fullmatch(word.text)
            known = self.commands_in.get(found[1] or found[2]) if found else None
            if known and known not in self.ran:  # repeated, it would set the same
                self.ran.add(known)
                for command in commands(known[0]):
                    self.run(command, known[1], depth + 1)

    def _command(self, words: Sequence[Word], line: int, depth: int) -> None:
        name, arguments = posixpath.basename(words[0].text), words[1:]
        if name in _PRINTERS or name in _OF_LAYERS:
            return
        if name in ("export", "declare", "typeset"):
            self._export(name, arguments, line)
        elif name == "unset":
            self._unset(arguments, line)
        elif name == "set":
            if len(arguments) > 2 and _FISH_EXPORT.fullmatch(arguments[0].text):
                self._pair(arguments[1:3], line)
            self._set_option([word.text for word in arguments])
        elif name in ("setenv", "ENV") and len(arguments) > 1 and not _assignment(arguments[0]):
            words_behind = arguments[1:]
            depends_on = next((word.depends_on for word in words_behind if word.depends_on), None)
            value = " ".join(word.text for word in words_behind)
            self._hand_on(arguments[0].text, value, line + words[0].line, depends_on)
        elif name == "ENV":
            for word in arguments:
                self._assign(word, line)
        else:
            self._program(words, line, depth)

    def _program(self, words: Sequence[Word], line: int, depth: int) -> None:
        """Run any other command: read the settings in its options or in an ``env`` before it."""
        names = [posixpath.basename(word.text) for word in words]
        is_slurm, in_env, has_shell = names[0] in _SLURM, False, False
        there = words[1:] if names[0] in _REMOTE and depth < _DEEPEST else ()
        for word in there:
            if " " in word.text:
                for command in commands(word.text):
                    self.run(command, line + word.line, depth + 1)
        for at, word in enumerate(words):
            before = words[at - 1].text if at else ""
            joined = _JOINED.fullmatch(word.text)
            if before in _PAIRS or (before == "-env" and not _assignment(word)):
                self._pair(words[at : at + 2], line)
            elif joined or before in _FLAGS:
                self._list(replace(word, text=joined[1] if joined else word.text), line, is_slurm=is_slurm)
            elif in_env and _assignment(word):
                self._assign(word, line)
            elif has_shell and re.fullmatch(r"-[a-z]*c", before) and depth < _DEEPEST:
                for command in commands(word.text):
                    self.run(command, line + word.line, depth + 1)
            goes_on = word.text.startswith("-") or before in _OF_ENV or bool(_assignment(word))
            in_env = names[at] == "env" or (in_env and goes_on)
            has_shell = has_shell or names[at] in _SHELLS

    def _pair(self, words: Sequence[Word], line: int) -> None:
        if _assignment(words[0]):
            self._assign(words[0], line)
        elif len(words) == 2:
            self._hand_on(words[0].text, words[1].text, line + words[0].line, words[1].depends_on)

    def _list(self, word: Word, line: int, *, is_slurm: bool) -> None:
        """Split ``ALL,A=b,C=d``: at each comma for SLURM, otherwise only at a comma before another name."""
        parts = _LISTED.findall(word.text) if is_slurm else re.split(r",(?=[A-Za-z_]\w*=)", word.text)
        for part in parts:
            bare = part[1:-1] if len(part) > 1 and part[0] == part[-1] and part[0] in "'\"" else part
            depends_on = word.depends_on if word.depends_on and word.depends_on in bare else None
            self._assign(replace(word, text=bare, depends_on=depends_on), line)

    def _assign(self, word: Word, line: int) -> None:
        found = _assignment(word)
        if found:
            depends_on = word.depends_on or ("its former value" if found[2] else None)
            self._hand_on(found[1], found[3], line + word.line, depends_on)

    def _set(self, word: Word, line: int) -> None:
        """Read a bare assignment: it sets a shell variable, unless the name is exported."""
        found = _assignment(word)
        before = len(self.given)
        self._assign(word, line)
        if found and len(self.given) > before and not self.exports_all and found[1] not in self.exported:
            self.given[-1] = replace(self.given[-1], void=_NOT_EXPORTED)

    def _export(self, name: str, arguments: Sequence[Word], line: int) -> None:
        options = "".join(word.text[1:] for word in arguments if word.text.startswith("-"))
        if name != "export" and "x" not in options:
            for word in arguments:
                self._set(word, line)
            return
        for at, word in enumerate(arguments):
            found = _assignment(word) or _NAME.fullmatch(word.text)
            after = [word.text for word in arguments[at + 1 : at + 3]]
            if found and found.re is _NAME and after and after[0].startswith("="):
                value = "".join(after[: 1 + (after[0] == "=")]).removeprefix("=")  # a shell rejects this
                if self.is_wanted(word.text):
                    self.given.append(Given(word.text, value, line + word.line, void=_WITH_A_SPACE))
                continue
            bare = found[1] if found and found.re is _ASSIGNMENT else word.text
            if found and self.is_wanted(bare):
                (self.exported.discard if "n" in options else self.exported.add)(bare)
                self._assign(word, line)
                last = max((place for place, given in enumerate(self.given) if given.name == bare), default=-1)
                if last >= 0 and self.given[last].void == _NOT_EXPORTED:
                    self.given[last] = replace(self.given[last], void=None)

    def _unset(self, arguments: Sequence[Word], line: int) -> None:
        names = {word.text: line + word.line for word in arguments if self.is_wanted(word.text)}
        here = self.branches.path  # values in another branch stay as they are
        if names:
            self.given = [
                replace(given, void=given.void or f"is unset in line {names[given.name]}")
                if given.name in names and given.path[: len(here)] == here
                else given
                for given in self.given
            ]
            if not here:
                self.exported -= names.keys()

    def _set_option(self, options: Sequence[str]) -> None:
        if "-a" in options or ("-o" in options and "allexport" in options):
            self.exports_all = True
        elif "+a" in options or ("+o" in options and "allexport" in options):
            self.exports_all = False


def is_kept(text: str) -> bool:
    """Return True if a shell line writes to a file that later shells or jobs read."""
    return any(
        _WRITES.search(text[max(name.start() - _LONGEST_PATH, 0) : name.start()]) for name in _KEPT.finditer(text)
    )


def _assignment(word: Word) -> re.Match[str] | None:
    return _ASSIGNMENT.fullmatch(word.text)
