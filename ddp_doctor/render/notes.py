"""What an output that ends in one line, or one list, for all hosts says above it in comments."""

from collections.abc import Callable, Iterator

from ddp_doctor.phrases.nodes import in_words
from ddp_doctor.render import shell
from ddp_doctor.render.handover import HandOver, Variable

_MOST_VALUES = 8


def notes(variable: Variable, form: Callable[[str, str | None], str]) -> Iterator[str]:
    """Why it is set; its value in this ``form`` where the line cannot have it: by host, or not applied."""
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


def nothing_set(given: HandOver) -> str:
    """The comment above a line or a list that sets nothing."""
    return shell.comment("nothing is set" if given.variables or given.options else "nothing to set")
