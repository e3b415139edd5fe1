"""Settings in lines of YAML and JSON as Kubernetes, docker compose and docker inspect write them.

    - name: NCCL_DEBUG                    a pod: two lines, or one: - {name: NCCL_DEBUG, value: INFO}
      value: "INFO"
    NCCL_DEBUG: INFO                      a map
    - NCCL_DEBUG=INFO                     a list of docker compose
    "NCCL_DEBUG=INFO",                    docker inspect

No document is parsed: a paste is seldom a whole one.
"""

import re

from ddp_doctor.settings.text.shell_settings import Shell

_PAIR_NAME = re.compile(r"""\s*(?:-\s+)?["']?name["']?\s*:\s*["']?([A-Za-z_]\w*)["']?\s*,?\s*""", re.ASCII)
_PAIR_VALUE = re.compile(r"""\s*["']?(value|valueFrom)["']?\s*:\s*(.*)""", re.ASCII)
_FLOW = re.compile(
    r"""\{\s*["']?name["']?\s*:\s*["']?([A-Za-z_]\w*)["']?\s*,\s*["']?value["']?\s*:\s*([^{}]*)\}""", re.ASCII
)
_MAP = re.compile(r"""\s*(?:-\s+)?["']?([A-Za-z_]\w*)["']?\s*:\s+(\S.*)""", re.ASCII)
_ITEM = re.compile(r"""\s*(?:-\s+|(?=["']))(["']?)([A-Za-z_]\w*)=(.*?)\1\s*\]?,?\s*""", re.ASCII)
_EXPANSION = re.compile(r"\$(?:\w+|\([^)]*\)?|\{[^}]*\}?)", re.ASCII)
#: Compose then hands on what it has itself.
_NULLS = ("~", "null", "Null", "NULL")
#: Lines between a name and its value.
_NEAR = 2


class Manifest:
    """Reads such lines one by one, and hands what they set to ``shell``."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._name, self._number = "", -_NEAR

    @property
    def waits(self) -> bool:
        """Whether the next line may hold the value of a name."""
        return bool(self._name)

    def read(self, line: str, number: int) -> bool:
        """Whether this line is one of those."""
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
