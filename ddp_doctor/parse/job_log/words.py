"""Searching many words in bytes at once (docs/adr/0016-search-for-many-words.md)."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

#: Number of the word, start and end of each occurrence in the bytes, by the lines they stand in; words may overlap.
Search = Callable[[bytes], list[tuple[int, int, int]]]


@lru_cache(maxsize=4)
def search_for(words: tuple[bytes, ...]) -> Search:
    """A search that releases Python's lock; where its library is missing, one a hundred times slower."""
    try:
        from ahocorasick_rs import BytesAhoCorasick, Implementation
    except ImportError:
        return _by_expression(words)
    automaton = BytesAhoCorasick(words, implementation=Implementation.DFA)
    return partial(automaton.find_matches_as_indexes, overlapping=True)


def _by_expression(words: Sequence[bytes]) -> Search:
    # In a look-ahead, so that words are found that overlap; of words that begin alike, the longest matches.
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
