"""Searching many words in bytes at once (docs/adr/0016-search-for-many-words.md)."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

#: Maximum number of characters around a word, in a line or in a piece of it between carriage returns.
BEFORE, AFTER = 4_000, 8_000
#: The number of the word, start and end of each occurrence in the bytes, ordered by line. Words may overlap.
Search = Callable[[bytes], list[tuple[int, int, int]]]


@lru_cache(maxsize=4)
def search_for(words: tuple[bytes, ...]) -> Search:
    """Return a search that releases Python's lock; without its library, a search that is a hundred times slower."""
    try:
        from ahocorasick_rs import BytesAhoCorasick, Implementation
    except ImportError:
        return _by_expression(words)
    automaton = BytesAhoCorasick(words, implementation=Implementation.DFA)
    return partial(automaton.find_matches_as_indexes, overlapping=True)


def _by_expression(words: Sequence[bytes]) -> Search:
    # The look-ahead finds words that overlap. Of words with the same beginning, the longest matches.
    longest_first = sorted(words, key=len, reverse=True)
    expression = re.compile(b"(?=(" + b"|".join(map(re.escape, longest_first)) + b"))")
    within = {word: [words.index(part) for part in words if word.startswith(part)] for word in words}

    def found(data: bytes) -> list[tuple[int, int, int]]:
        return [
            (number, match.start(), match.start() + len(words[number]))
            for match in expression.finditer(data)
            for number in within[match[1]]
        ]

    return found


def pieces(
    chunk: bytes, at: int, end: int, found: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[int, int, set[int]]]:
    """Yield the pieces of a long line or one with carriage returns that hold words; the last piece if none does."""
    if not found:
        start = max(chunk.rfind(b"\r", at, end - 1) + 1, at)
        yield start, min(end, start + AFTER), set()
        return
    stop = at
    words: set[int] = set()
    start = at
    for word, word_at, _ in found:
        if word_at >= stop:
            if words:
                yield start, stop, words
            start = max(chunk.rfind(b"\r", at, word_at) + 1, at, word_at - BEFORE)
            stop = chunk.find(b"\r", word_at, end)
            stop = min(end if stop < 0 else stop, word_at + AFTER)
            words = set()
        words.add(word)
    yield start, stop, words
