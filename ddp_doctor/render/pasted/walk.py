"""What the forms share that are one line or one list for all hosts, with comments above it."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ddp_doctor.remedies.settings_to_apply import SettingsToApply, Variable
from ddp_doctor.render import shell
from ddp_doctor.wording.nodes import name_list

_MOST_VALUES = 8

#: Writes a variable with its value, or with None if it is to be unset.
Form = Callable[[str, str | None], str]


class Walked(NamedTuple):
    """The comments on all variables, and what is set."""

    comments: list[str]
    settings: list[tuple[str, str | None]]  # that are applied on all hosts; None unsets the variable


def walk(given: SettingsToApply, form: Form, *, can_unset: bool = False) -> Walked:
    """All variables in order. If the form cannot unset one, a comment says that it has to go."""
    found = Walked([], [])
    for variable in given.variables:
        found.comments.extend(_notes(variable, form))
        branch = variable.everywhere
        if branch is None or variable.not_applied:
            continue
        if branch.value is None and not can_unset:
            found.comments.append(shell.comment(form(variable.name, None)))
        else:
            found.settings.append((variable.name, branch.value))
    return found


def page(heading: str, given: SettingsToApply, comments: Sequence[str], end: str, *, sets: bool) -> str:
    """The whole text: its source, the comments, and at the end the line or list, which may set nothing."""
    lines = [shell.remark(f"{heading}, recommended by {given.source}"), *comments]
    if not sets:
        lines.append(
            shell.comment("nothing is set" if given.variables or given.options else "nothing to set")
        )
    return "\n".join([*lines, end]) + "\n"


def _notes(variable: Variable, form: Form) -> Iterator[str]:
    """Why it is set, and its values in this ``form`` that cannot be part of the line: by host, or not applied."""
    yield shell.remark(variable.because)
    if not variable.branches:
        yield shell.remark(f"{variable.name}: not applied")
    for branch in variable.per_host[:_MOST_VALUES]:
        value = form(variable.name, branch.value)
        yield shell.comment(f"on {name_list(branch.hosts)} only: {value}", variable.not_applied)
    if more := len(variable.per_host[_MOST_VALUES:]):
        yield shell.comment(f"and {more} more values on other hosts; --env-file has them all")
    if variable.everywhere and variable.not_applied:
        yield shell.comment(form(variable.name, variable.everywhere.value), variable.not_applied)
