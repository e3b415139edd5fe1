"""The walk that all forms share which end in one line, or one list, for all hosts: what comments say above it."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ddp_doctor.remedies.settings_to_apply import SettingsToApply, Variable
from ddp_doctor.render import shell
from ddp_doctor.wording.nodes import in_words

_MOST_VALUES = 8

#: A variable and its value, or None where it has to go, as this output writes them.
Form = Callable[[str, str | None], str]


class Walked(NamedTuple):
    """What the variables come to."""

    comments: list[str]
    settings: list[tuple[str, str | None]]  # what is applied on all hosts; None takes the variable away


def walk(given: SettingsToApply, form: Form, *, can_unset: bool = False) -> Walked:
    """All variables in their order; where the output cannot take one away, a comment says that it has to go."""
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
    """The whole text: whence it comes, the comments, and the line or list at its end, which sets something or not."""
    lines = [shell.remark(f"{heading}, recommended by {given.source}"), *comments]
    if not sets:
        lines.append(
            shell.comment("nothing is set" if given.variables or given.options else "nothing to set")
        )
    return "\n".join([*lines, end]) + "\n"


def _notes(variable: Variable, form: Form) -> Iterator[str]:
    """Why it is set; its value in this ``form`` where the end cannot have it: by host, or not applied."""
    yield shell.remark(variable.because)
    if not variable.branches:
        yield shell.remark(f"{variable.name}: not applied")
    for branch in variable.per_host[:_MOST_VALUES]:
        value = form(variable.name, branch.value)
        yield shell.comment(f"on {in_words(branch.hosts)} only: {value}", variable.not_applied)
    if more := len(variable.per_host[_MOST_VALUES:]):
        yield shell.comment(f"and {more} more values on other hosts; --env-file has them all")
    if variable.everywhere and variable.not_applied:
        yield shell.comment(form(variable.name, variable.everywhere.value), variable.not_applied)
