"""A search by the words of a phrase, for ``ddp-doctor explain``: rare words count more, and words of titles most."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from typing import NamedTuple

#: Words with the same meaning in phrases of users.
_SAME = (
    ("hang", "stuck", "freeze", "frozen", "stall", "deadlock", "unresponsive", "stand"),
    ("slow", "slower", "slowly", "lag", "late"),
    ("memory", "oom"),
    ("use", "used", "taken", "busy", "occupied", "held", "hold"),
    ("die", "dead", "died", "kill", "crash"),
    ("differ", "different", "mismatch", "disagree", "unequal"),
    ("reach", "unreachable", "route", "refused"),
    ("nan", "inf", "infinite", "finite"),
    ("fall", "fell", "fallen"),
    ("library", "lib", "libnccl", "so"),
    ("start", "begin", "launch", "init", "initialize"),
    ("end", "exit", "finish"),
    ("process", "worker"),
    ("bad", "faulty", "broken", "unhealthy"),
)
_IGNORED = frozenset(
    """
    a about after all am an and any are as at be because been but by can cannot could did do does doesn for from
    get gets had has have how i if in into is isn it its just me my no not of off on one only or our over own so
    than that the their them then there these they this those to too up was we were what when where which while
    who whose why will with without work works would you your
    """.split()  # noqa: SIM905  a list of words
)
_SPELLINGS = (
    (r"\btime[sd]?[- ]outs?\b", "timeout"),
    (r"\bout of memory", "oom"),
    (r"\bdev/shm", "shm shared memory"),
    (r"\b(all|reduce)[-_ ](reduce|gather|scatter|to[-_ ]all)", r"\1\2"),
)
#: The lowest score of a result, relative to the best, and the weight of words of the text.
_NEAR_BEST, _OF_TEXT = 0.5, 0.3


class Entry(NamedTuple):
    """A thing to find: ``titles`` are its names and messages, ``text`` is the rest."""

    kind: str
    shown: str  # the line in the list of results
    titles: tuple[str, ...]
    text: str = ""


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word[:-1] if word[-1:] == word[-2:-1] else word


_MEANING = {_stem(word): _stem(words[0]) for words in _SAME for word in words}


@cache
def _normal(word: str) -> str:
    return _MEANING.get(_stem(word), _stem(word))


def _words(text: str) -> list[str]:
    parts = (re.sub(r"(?<=[a-z])(?=[A-Z])", " ", word) for word in re.findall(r"\b\w*[a-z][A-Z]\w*", text))
    text = " ".join([text, *parts]).lower()  # connectFullMesh, connect full mesh
    for pattern, spelling in _SPELLINGS:
        text = re.sub(pattern, spelling, text)
    return [_normal(word) for word in re.findall(r"[a-z0-9]+", text) if word not in _IGNORED]


def search(phrase: str, entries: Sequence[Entry], most: dict[str, int], *, covered: float) -> list[Entry]:
    """Return the best entries, the best first, at most as many of each kind as ``most`` says.

    ``covered`` is the share of the phrase's weight that an entry must contain. Below 1, misspelled words are corrected.
    """
    indexed = [_indexed(entry) for entry in entries]
    frequency = Counter(word for _, text in indexed for word in text)
    weight = {word: math.log(1 + len(entries) / (1 + count)) for word, count in frequency.items()}
    words = _words(phrase)
    wanted = {*(_corrected(words, frequency) if covered < 1 else words)}

    def weigh(words: Iterable[str]) -> float:
        return math.fsum(weight.get(word, math.log(1 + len(entries))) for word in words)  # the same in any order

    def score(titles: Iterable[frozenset[str]], text: frozenset[str]) -> float:
        found = ((weigh(wanted & title), weigh(title)) for title in titles)
        in_title = max((weight * math.sqrt(weight / whole) for weight, whole in found if whole), default=0.0)
        return round(in_title + _OF_TEXT * weigh(wanted & text), 6) if in_title else 0.0  # sets have no order

    scored = [
        (score(titles, text), entry)
        for entry, (titles, text) in zip(entries, indexed, strict=True)
        if wanted and weigh(wanted & text) >= covered * weigh(wanted)
    ]
    scored.sort(key=lambda row: -row[0])
    left, found = Counter(most), []
    for worth, entry in scored:
        if worth and worth >= _NEAR_BEST * scored[0][0] and left[entry.kind] > 0:
            left[entry.kind] -= 1
            found.append(entry)
    return found


@cache
def _indexed(entry: Entry) -> tuple[tuple[frozenset[str], ...], frozenset[str]]:
    """Return the words of each title, and all words."""
    titles = tuple(frozenset(_words(title)) for title in entry.titles)
    return titles, frozenset(_words(entry.text)).union(*titles)


def _corrected(words: Iterable[str], vocabulary: Iterable[str]) -> Iterator[str]:
    """Yield the words, misspelled ones corrected, without numbers that no entry has."""
    known = {*vocabulary}
    for word in words:
        if word in known:
            yield word
        elif not word.isdecimal():
            yield from get_close_matches(word, known, 1, 0.8) or [word]
