"""Keeps credentials out of recordings, because users paste them and recordings are sent to other people.

PET_RDZV_ENDPOINT=etcd://user:secret@host:2379   a password in an address TORCH_HUB_TOKEN=abc
a telling name NCCL_NOTE=ghp_16C7e42F292c6912E7710c838347Ae178B4a   a known form of token
"""

import re
from collections.abc import Iterable, Mapping

from ddp_doctor.parse.text import as_utf8

_NAMES = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY", re.IGNORECASE)
_VALUES = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@"  # user:password@host
    r"|(?<![a-z0-9])(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key)\s*[=:]"
    r"|(?<![a-z0-9])(?:sig|signature|credential)="  # a signed address
    r"|\b(?:Bearer|Basic)\s+[A-Za-z0-9+/._-]{8,}"
    r"|-----BEGIN "
    r"|\bA[KS]IA[0-9A-Z]{16}\b|\bgh[a-z]_[A-Za-z0-9]{30,}|\bgithub_pat_|\bhf_[A-Za-z0-9]{20,}"
    r"|\bnvapi-[A-Za-z0-9_-]{20,}|\bnpm_[A-Za-z0-9]{30,}|\bAIza[A-Za-z0-9_-]{30,}|\bwandb_v[0-9]|\bdckr_pat_|\bpypi-[A-Za-z0-9_-]{30,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}|\bglpat-|\bxox[a-z]-|\beyJ[A-Za-z0-9_-]{10,}\.",
    re.IGNORECASE,
)

#: Stands for a value that is not recorded.
KEPT_BACK = "(kept back)"
#: A longer value is not a setting.
LONGEST_RECORDED = 4096


def is_withheld(name: str, value: str) -> bool:
    """Return True if a variable looks like a credential, by its name or value, or is too long for a setting."""
    return bool(value) and (len(value) > LONGEST_RECORDED or bool(_NAMES.search(name)) or bool(_VALUES.search(value)))


def looks_like_credential(text: str) -> bool:
    """Return True if part of a text has the form of a password, a key or a token."""
    return bool(_VALUES.search(text))


#: A credential with the words that identify it, to be masked in a line, including after an option, in JSON or a
#: variable.
_NAME = r"(?:token(?!s|iz)|secret|passw(?:or)?d|passphrase|credential|api[_-]?key|access[_-]?key|private[_-]?key)"
#: A character of it. An & ends it only if another field of an address follows.
_VALUE = r"(?:[^\s'\",;)&]|&(?![\w.-]+=))"
_IN_TEXT = re.compile(
    rf"(?:{_VALUES.pattern})(?:\s*['\"]?{_VALUE}+)?"
    rf"|{_NAME}[\w-]{{0,30}}['\"]?\s*[:=]\s*['\"]?{_VALUE}{{4,}}"
    rf"|--[a-z-]{{0,30}}{_NAME}[a-z-]{{0,30}}\s+{_VALUE}{{4,}}",
    re.IGNORECASE,
)


#: Every text that _IN_TEXT matches contains one of these in lower case; almost no line contains any.
_SIGNS = (
    "://", "pass", "pwd", "secret", "token", "key", "bearer", "basic", "sig=", "signature=", "credential", "-----begin",
    "akia", "asia", "gho_", "ghp_", "ghu_", "ghs_", "ghr_", "github_pat_", "hf_", "nvapi-", "npm_", "aiza", "wandb_v",
    "dckr_pat_", "pypi-", "sk-", "glpat-", "xox", "eyj",
)  # fmt: skip


def masked(text: str) -> str:
    """Return a text with KEPT_BACK instead of text with the form of a password, a key or a token."""
    small = text.lower()
    if not any(sign in small for sign in _SIGNS):
        return text
    return _IN_TEXT.sub(lambda found: f"://{KEPT_BACK}" if found[0].startswith("://") else KEPT_BACK, text)


def open_and_withheld(env: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that may be recorded, sorted by name and as text of UTF-8, and the names of the others."""
    known = {name: as_utf8(value) for name, value in sorted(env.items())}
    withheld = tuple(name for name, value in known.items() if is_withheld(name, value))
    return {name: value for name, value in known.items() if name not in withheld}, withheld


def shielded(env: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the environment without credentials in these names' values, for probes that repeat the values."""
    kept_back = [name for name in names if is_withheld(name, env.get(name, ""))]
    return {**env, **dict.fromkeys(kept_back, KEPT_BACK)}
