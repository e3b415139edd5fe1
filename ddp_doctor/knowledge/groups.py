"""Which things hang together: what is joined by a link, directly or through others."""

from collections.abc import Iterable, Sequence


def connected(names: Sequence[str], links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """For each name the first name of its group; a name without a link is a group of its own."""
    first = {name: name for name in names}

    def root(name: str) -> str:
        while first[name] != name:
            first[name] = name = first[first[name]]
        return name

    order = {name: index for index, name in enumerate(names)}
    for one, two in links:
        low, high = sorted((root(one), root(two)), key=order.__getitem__)
        first[high] = low
    return {name: root(name) for name in names}
