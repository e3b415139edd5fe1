"""Error texts that ``explain`` looks up, and that ranks of ``run`` may print."""

from typing import NamedTuple


class Page(NamedTuple):
    """The page of ``explain`` for a text that names no cause."""

    means: str  # one sentence
    codes: tuple[str, ...]  # of rules that find a cause, the likeliest first
    source: str  # what prints it
    settings: tuple[str, ...] = ()


class KnownError(NamedTuple):
    """An error text: any of the words, and a regular expression for the line with them."""

    id: str
    words: tuple[str, ...]
    pattern: str
    page: Page | None
    cause: str  # its name; empty if the text names none
    code: str  # of its cause; empty if the text is only a hint
    run_code: str  # of the rule of ``run`` about it, if NCCL prints it before a trial fails
