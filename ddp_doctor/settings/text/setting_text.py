r"""Read settings from a text: an environment, a job script, a manifest.

    NCCL_DEBUG=INFO                                      env, printenv, set, /proc/PID/environ
    declare -x NCCL_DEBUG="INFO"                         export -p
    #SBATCH --export=ALL,NCCL_DEBUG=INFO                 a job script; also srun --export=…
    export NCCL_DEBUG=INFO; OMP_NUM_THREADS=8 python train.py
    docker run -e NCCL_DEBUG=INFO …                      also mpirun -x, mpiexec -genv, env A=b, bash -c "…"
    ENV NCCL_DEBUG=INFO                                  a Dockerfile
    Environment="NCCL_DEBUG=INFO"                        a unit of systemd
    export APPTAINERENV_NCCL_DEBUG=INFO                  passed into the container by apptainer and singularity
    - name: NCCL_DEBUG                                   a pod; also - {name: NCCL_DEBUG, value: INFO}
      value: INFO
    NCCL_DEBUG: INFO                                     a map
    - NCCL_DEBUG=INFO                                    a list of docker compose
    "NCCL_DEBUG=INFO",                                   docker inspect

The text is never run, so only the text of a value with an expansion is known; ${NAME:-1} is 1 unless NAME is set
earlier. Lines that a script writes to nccl.conf, .deepspeed_env or .bashrc count. If two lines set one name, the later
line counts. A bare ``NCCL_DEBUG=INFO`` in a script sets a shell variable, which commands do not see until it is
exported.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from ddp_doctor.facts.node.env_vars import Form, SettingText, Written
from ddp_doctor.parse.redact import is_withheld
from ddp_doctor.parse.text import plain_lines
from ddp_doctor.settings.files import ReadFile, read_none
from ddp_doctor.settings.names import is_recorded
from ddp_doctor.settings.text.shell_settings import Given, Shell, is_kept
from ddp_doctor.settings.text.shell_words import commands, commands_and_signs

#: A text with more settings is neither an environment nor a script.
MOST_SETTINGS = 2000
#: The same applies to a longer line.
LONGEST_LINE = 32_768
#: A text with one invalid UTF-8 character in this many is a binary file.
_MOST_UNREADABLE = 100
#: Lines that a backslash at their end may join.
_MOST_JOINED = 200


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMED = re.compile(r"(?:declare -\w+ |typeset -\w+ |export )?([A-Za-z_][A-Za-z0-9_]*)(?:\(\)|%%)?\+?=")
_BARE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
#: Marks of an environment, a script or a manifest, even one without our variables.
#: A command after variables and before options or a script: ``CMD=python x.py -a`` does not match.
_RUNS = re.compile(
    r"(?:NCCL|CUDA|OMP|TORCH|GLOO|UCX|MASTER|NODE|NNODES|NPROC|LD|HF|PYTHON)\w*=\S* +(?:[A-Za-z_]\w*=\S* +)*"
    r"[\w./][\w./-]* +(?:-|\S+\.(?:py|sh)\b)"
)
#: A line of code in Markdown, and the prompt of a shell.
_CODE = re.compile(r"^\s*`([^`]+)`\s*$")
_TYPED = re.compile(r"^\s*(?:\([\w.-]{1,50}\) )?(?:[\w.-]{1,50}@[\w.-]{1,80}:[^\s$#]{0,200}\s?[$#]|\$) (?=[A-Za-z./])")
_SETS = re.compile(r"#!|#SBATCH|apiVersion:|FROM \S|" + _NAMED.pattern)
_TORCHRUN = re.compile(r"^[^#\n]*\b(?:torchrun|torch\.distributed\.(?:run|launch))\b", re.MULTILINE)
#: Lines that torch's and vLLM's collect_env print before the variables, which are those of a process.
_RELEASES = {
    "torch": re.compile(r"PyTorch version: (\d\S*)"),
    "nccl": re.compile(r"(?:\[\w+\] )?nvidia-nccl-cu\d+(?:==| +)(\d[\d.]*)"),
    "rocm": re.compile(r"ROCM used to build PyTorch: (\d\S*)"),
}
_COLLECT_ENV = ("Collecting environment information", "PyTorch version: ", "vLLM Version: ")
#: ``[me@node1 x]$ export …``, ``(base) me@node1:~$ export …``
_PROMPT = re.compile(r"(?:\([\w.-]+\) )?\[?(?<![\w.-])[\w.-]+@[\w.-]+[^$#\n]{0,60}[$#]\s+(?=\S)")
#: The prefix that Apptainer and Singularity remove inside the container (apptainer.org, environment and metadata).
_INTO_CONTAINER = re.compile(r"(?:APPTAINER|SINGULARITY)ENV_(?=\w)", re.ASCII)
_UNIT = re.compile(r"Environment=(?=\S)")
_PYTHON = re.compile(r"#!.*\bpython", re.ASCII)
_PBS = re.compile(r"#PBS\s+-v\s+")
#: ``command: ["bash", "-c", "export …"]``, or an item of such a list on its own line.
_LISTS_WORDS = re.compile(r"\s*(?:-\s+)?[\"']?(?:command|args|entrypoint)[\"']?:\s*\[|\s*-\s+(?=[\"'])")
_QUOTED = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'")
_ARRAY = re.compile(r"\s*(?:local |readonly |declare -a )?[A-Za-z_]\w*\+?=\(\s*(?:#.*)?")
#: ``bash -c '`` with the rest of its script on the next lines.
_OPENS_SCRIPT = re.compile(r"(?<=\s)-[a-z]*c\s+'[^']*$")
_HERE_DOCUMENT = re.compile(r"<<-?\s*\\?['\"]?(\w+)")
#: ``${NAME:-text}``: the text, unless the name is already set.
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?[-=]([^${}`'\"\\]+)\}", re.ASCII)
_COMMAND = re.compile(r"(?:\$\(|`)\s*([\w./-]{0,40})", re.ASCII)
#: Words that start, end or divide a conditional part of a script.
_BRANCHES = re.compile(r"\b(?:if|else|elif|fi|case|esac|for|while|until|select|done|function)\b|;;|[{}]|\(\)|&&$|\|\|$")
#: Every login has three of them, and few scripts set three.
_OF_A_LOGIN = frozenset(("PATH", "HOME", "PWD", "USER", "SHELL", "SHLVL", "LANG", "HOSTNAME", "_"))
#: Names that only ``set`` prints, not ``env``. In the output of ``set``, quotes are the shell's.
_OF_SET = frozenset(("BASHOPTS", "BASH_VERSINFO", "IFS", "PPID", "OPTIND"))


_PAIR_NAME = re.compile(r"""\s*(?:-\s+)?["']?name["']?\s*:\s*["']?([A-Za-z_]\w*)["']?\s*,?\s*""", re.ASCII)
_PAIR_VALUE = re.compile(r"""\s*["']?(value|valueFrom)["']?\s*:\s*(.*)""", re.ASCII)
_FLOW = re.compile(
    r"""\{\s*["']?name["']?\s*:\s*["']?([A-Za-z_]\w*)["']?\s*,\s*["']?value["']?\s*:\s*([^{}]*)\}""", re.ASCII
)
_MAP = re.compile(r"""\s*(?:-\s+)?["']?([A-Za-z_]\w*)["']?\s*:\s+(\S.*)""", re.ASCII)
_ITEM = re.compile(r"""\s*(?:-\s+|(?=["']))(["']?)([A-Za-z_]\w*)=(.*?)\1\s*\]?,?\s*""", re.ASCII)
_EXPANSION = re.compile(r"\$(?:\w+|\([^)]*\)?|\{[^}]*\}?)", re.ASCII)
#: Compose then passes its own value.
_NULLS = ("~", "null", "Null", "NULL")
#: Lines between a name and its value.
_NEAR = 2


class NoSettings(ValueError):
    """The text does not set any variable; the message says why in one sentence."""


def read_setting_text(text: str, also: Collection[str] = (), read_file: ReadFile = read_none) -> SettingText:
    """Return the settings and launches in a text: recorded variables and the names in ``also``.

    Raises NoSettings if there are none, or more than any environment has.
    """
    from ddp_doctor.settings.launches.launches import Launches, launches_of  # a prolog does not read texts

    if text.count("\ufffd") * _MOST_UNREADABLE > len(text):
        raise NoSettings("is not text")
    lines = [_TYPED.sub("", _CODE.sub(r"\1", line)) for line in plain_lines(text.replace("\0", "\n"))]
    if lines and _PYTHON.match(lines[0]):
        raise NoSettings("is a Python script; run `ddp-doctor lint` to check it")
    form = _form([*filter(None, lines)])
    shell = Shell(
        is_wanted=lambda name: is_recorded(_name_in_container(name)) or _name_in_container(name) in also,
        exports_all=form != "script",
    )
    of_shell = ("declare -", "typeset -", "export ")
    is_printed_by_shell = any(line.startswith(of_shell) or line.partition("=")[0] in _OF_SET for line in lines)
    if form == "environment" and not is_printed_by_shell:
        _read_plain(lines, shell)
    else:
        _read_lines(lines, shell)
    found = launches_of(lines, read_file) if form == "script" else Launches()
    if not (shell.given or found.launches or found.unchecked) and not any(map(_SETS.match, lines)):
        raise NoSettings(
            "sets no variable; expected the output of `env`, a job script, a Dockerfile or a Kubernetes manifest"
        )
    called = form == "script" and _TORCHRUN.search("\n".join(lines)) is not None
    return SettingText(
        form=form,
        written=tuple(_written(given) for given in shell.given),
        calls_torchrun=called,
        job=found.job,
        launches=found.launches,
        unchecked=found.unchecked,
        header_faults=found.header_faults,
        unread=found.unread,
        **_releases(lines),
    )


def _releases(lines: Sequence[str]) -> dict[str, str]:
    """Return the releases in the output of torch.utils.collect_env; omit a library with several releases."""
    found: dict[str, set[str]] = {}
    for name, pattern in _RELEASES.items():
        found[name] = {match[1] for line in lines if (match := pattern.match(line[:300]))}
    return {name: releases.pop() for name, releases in found.items() if len(releases) == 1}


def _name_in_container(name: str) -> str:
    return _INTO_CONTAINER.sub("", name, count=1)


def _form(lines: Sequence[str]) -> Form:
    names, named, others = set(), 0, 0
    for line in lines:
        found = _NAMED.match(line)
        if found:
            named += 1
            if found[1] in _OF_A_LOGIN:
                names.add(found[1])
        elif line.strip() and not line.startswith("#"):
            others += 1
    if any(line.startswith(_COLLECT_ENV) for line in lines):  # in many reports, followed by a script
        return "listing"
    if any(line.startswith(("#!", "#SBATCH")) for line in lines):
        return "script"
    if len(names) >= 3:
        return "environment"
    return "listing" if others * 4 <= named and not any(map(_RUNS.match, lines)) else "script"


def _read_plain(lines: Sequence[str], shell: Shell) -> None:
    for number, line in enumerate(lines, 1):
        found = _BARE.fullmatch(line)
        if found and shell.is_wanted(found[1]):
            shell.give(found[1], found[2], number)
            _stop_if_many(shell)


def _read_lines(lines: Sequence[str], shell: Shell) -> None:
    manifest, at = _Manifest(shell), 0
    lines = [*_without_inner_quotes(lines)]
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        end = at + 1
        while end < len(lines) and end - at < _MOST_JOINED and lines[end - 1].endswith("\\"):
            end += 1
        whole = "\n".join(lines[at:end])
        if len(whole) <= LONGEST_LINE and (manifest.waits or _may_matter(whole, shell)):
            if end - at > 1 or not manifest.read(whole, at + 1):
                _read_shell(whole, at + 1, shell)
            _stop_if_many(shell)
        at = end
        if is_kept(whole) and (opened := _HERE_DOCUMENT.search(whole)):
            at = _read_all(lines, end, opened[1], shell)
        elif _ARRAY.fullmatch(whole):
            at = _read_all(lines, end, ")", shell)


def _without_inner_quotes(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines; within ``bash -c '``, quotes end and begin again around what the outer shell expands."""
    is_inside = False
    for line in lines:
        is_odd = line.count("'") % 2 == 1
        yield line.replace("'", "") if is_inside and not is_odd else line
        if is_odd:
            is_inside = not is_inside and _OPENS_SCRIPT.search(line) is not None


def _read_all(lines: Sequence[str], at: int, last: str, shell: Shell) -> int:
    """Read lines whose bare assignments count: of a file that NCCL or a later shell reads, or of an array.

    Return the number of the line after the last.
    """
    end = next((number for number in range(at, len(lines)) if lines[number].strip() == last), None)
    if end is None:
        return at
    exports_all, shell.exports_all = shell.exports_all, True
    for number in range(at, end):
        if _may_matter(lines[number], shell):
            _read_shell(lines[number], number + 1, shell)
            _stop_if_many(shell)
    shell.exports_all = exports_all
    return end + 1


def _may_matter(text: str, shell: Shell) -> bool:
    """Return True if the text contains a wanted name or changes the meaning of later lines."""
    words = set(_WORD.findall(text))
    return (
        "allexport" in text
        or "set " in text
        or any(map(shell.is_wanted, words))
        or _BRANCHES.search(text) is not None
        or ("$" in text and not shell.commands_in.keys().isdisjoint(words))
    )


def _read_shell(text: str, number: int, shell: Shell) -> None:
    for mark in ("#SBATCH", "#FLUX:"):
        if text.startswith(mark):
            text = f"sbatch {text[len(mark) :]}"
    text = _UNIT.sub("export ", text) if _UNIT.match(text) else text
    text = _PBS.sub("sbatch --export=", _PROMPT.sub("", text, count=1), count=1)
    if _LISTS_WORDS.match(text):
        for found in _QUOTED.finditer(text):
            inner = found[1] or found[2] or ""
            for command in commands(inner) if " " in inner else ():
                shell.run(command, number)
        return
    kept, before = is_kept(text), shell.signs
    for command, after in commands_and_signs(text):
        shell.branches.see([word.text for word in command], before, after)
        if command:
            shell.run(command, number)
            if kept:
                shell.keep(command, number)
        before = after
    shell.signs = before


def _stop_if_many(shell: Shell) -> None:
    if len(shell.given) > MOST_SETTINGS:
        raise NoSettings(f"sets more than {MOST_SETTINGS} variables of NCCL, torch or gloo, the limit for one input")


def _written(given: Given) -> Written:
    name, value, depends_on = _name_in_container(given.name), given.value, given.depends_on
    written = Written(name=name, line=given.line, void=given.void, path=given.path)
    if is_withheld(name, value):
        return written
    default = _DEFAULT.fullmatch(value) if depends_on else None
    if default:
        return written.model_copy(update={"value": default[2], "unless_set": default[1]})
    command = _COMMAND.search(value) if depends_on else None
    if command:  # the content of a command may be anything
        depends_on = f"$({command[1]} …)"
        value = value[: command.start()] + depends_on
    return written.model_copy(update={"value": value, "depends_on": depends_on})


class _Manifest:
    """A reader that passes settings in lines of YAML and JSON to ``shell``.

    It does not parse documents, because pasted text is rarely complete.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._name, self._number = "", -_NEAR

    @property
    def waits(self) -> bool:
        """Return True if the next line may hold the value of a name."""
        return bool(self._name)

    def read(self, line: str, number: int) -> bool:
        """Read a line; return True if it names or sets a wanted variable."""
        if self._name:
            if number > self._number + _NEAR:
                self._name = ""
            elif value := _PAIR_VALUE.fullmatch(line):
                self._give(self._name, value[2] if value[1] == "value" else "$valueFrom", self._number)
                self._name = ""
                return True
        if (name := _PAIR_NAME.fullmatch(line)) and self._shell.is_wanted(name[1]):
            self._name, self._number = name[1], number
            return True
        return self._read_one(line, number)

    def _read_one(self, line: str, number: int) -> bool:
        pairs = [(found[1], found[2]) for found in _FLOW.finditer(line)]
        if found := _MAP.fullmatch(line):
            pairs.append((found[1], found[2]))
        elif item := _ITEM.fullmatch(line):
            pairs.append((item[2], item[3]))
        wanted = [(name, text) for name, text in pairs if self._shell.is_wanted(name)]
        for name, text in wanted:
            if text.strip() not in _NULLS:
                self._give(name, text, number)
        return bool(wanted)

    def _give(self, name: str, text: str, number: int) -> None:
        value = _bare_scalar(text)
        found = _EXPANSION.search(value)
        self._shell.give(name, value, number, found and found.group())


def _bare_scalar(text: str) -> str:
    text = text.strip()
    if text[:1] in ("'", '"'):
        end = text.find(text[0], 1)
        return text[1:end] if end > 0 else text[1:]
    return text.partition(" #")[0].strip().removesuffix(",").rstrip()
