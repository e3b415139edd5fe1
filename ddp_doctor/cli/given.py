"""Texts and codes that the user names on the command line: read, and refused where they are another command's."""

import codecs
from collections.abc import Sequence

from ddp_doctor.knowledge.retired import RETIRED
from ddp_doctor.model.choices import UsageError, as_usage_error
from ddp_doctor.model.rule import Described
from ddp_doctor.parse.file_kinds import READ_BY, file_kind
from ddp_doctor.parse.hostlist import expand, read_host_file
from ddp_doctor.sources.given import MOST_BYTES, CannotRead, read_given


def given_text(path: str, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file that the user names, ``-`` for stdin, also of one in UTF-16. Raises UsageError."""
    with as_usage_error(CannotRead):
        content = read_given(path, most_bytes=most_bytes)
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_wide else "utf-8", errors="replace")


def require_kind(path: str, text: str, wanted: str, *fine: str) -> None:
    """Refuse a text of a known kind that is none of ``fine``: it would pass for empty or healthy. Raises UsageError."""
    kind = file_kind(text)
    if kind is not None and kind not in fine:
        reads = f"; `ddp-doctor {READ_BY[kind]} {path}` reads it" if kind in READ_BY else ""
        raise UsageError(f"{path} is {kind}, and {wanted} is wanted{reads}")


def given_hosts(hosts: str | None, hostfile: str | None) -> tuple[str, ...]:
    """The hosts of --hosts or --hostfile; none where neither was given. Raises UsageError."""
    if hosts is not None and hostfile is not None:
        raise UsageError("--hosts and --hostfile are two ways to say the same: give one")
    with as_usage_error():
        found = read_host_file(given_text(hostfile)) if hostfile is not None else () if hosts is None else expand(hosts)
    if hostfile is not None and not found:
        raise UsageError(f"{hostfile} names no host; write one on each line")
    return found


def rule_codes(given: Sequence[str] | None, rules: Sequence[Described]) -> tuple[str, ...]:
    """``--ignore DD305,DD4``: codes, or how they begin, of some of these rules. Raises UsageError."""
    codes = tuple(code.strip().upper() for text in given or () for code in text.split(",") if code.strip())
    for code in codes:
        if code not in RETIRED and not any(rule.code.startswith(code) for rule in rules):
            raise UsageError(f"there is no rule {code!r} here; `ddp-doctor checks` lists them")
    return codes


def ignored(given: Sequence[str] | None) -> tuple[str, ...]:
    """The codes that --ignore names. Raises UsageError also where they leave no rule: all would seem healthy."""
    if not given:
        return ()
    from ddp_doctor.engine.diagnose import all_rules  # takes longer than linting

    rules = all_rules()
    codes = rule_codes(given, rules)
    if codes and all(rule.code.startswith(codes) for rule in rules):
        raise UsageError(f"--ignore {','.join(codes)} leaves no rule")
    return codes
