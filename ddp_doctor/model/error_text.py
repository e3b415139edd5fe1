"""Parts of error messages: a value that the user gave, and suggestions for an unknown name."""

import re
from collections.abc import Iterable, Sequence

#: The longest value that an error message quotes in full; most paths are shorter.
_LONGEST = 120
_MOST_SUGGESTED = 3


def quoted(value: object) -> str:
    """Return a value in quotes for an error message: control characters escaped, the middle of a long text omitted."""
    text = repr(str(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"


def unknown(kind: str, name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the error message for an unknown name: with the nearest known names, or ``otherwise`` what to do."""
    return f"unknown {kind} {quoted(name)}; {did_you_mean(name, known) or otherwise}"


def expected(name: str, known: Iterable[str]) -> str:
    """Return ``expected a, b or c; did you mean 'a'?`` for a name that is not one of these."""
    names = [*known]
    hint = did_you_mean(name, names)
    return f"expected {_listed(names)}{hint and f'; {hint}'}"


def did_you_mean(name: str, known: Iterable[str], also: Iterable[str] = ()) -> str:
    """Return ``did you mean 'p2p'?`` with the known names that start with the name or resemble it, or else ``also``.

    Returns "" if there are none.
    """
    from difflib import get_close_matches  # most runs need none

    wanted = _normalized(name)
    by_text = {_normalized(each): each for each in known}
    begun = [each for text, each in by_text.items() if wanted and text.startswith(wanted)]
    near = [by_text[text] for text in get_close_matches(wanted, by_text, _MOST_SUGGESTED, 0.7)]
    suggested = [*dict.fromkeys([*begun, *near] or also)][:_MOST_SUGGESTED]
    return f"did you mean {_listed([*map(repr, suggested)])}?" if suggested else ""


def _listed(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _normalized(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.lower()).strip("_")
