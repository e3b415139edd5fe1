"""Short forms of tables in tests."""


def pairs(words: str) -> dict[str, str]:
    """A dictionary from ``NAME=VALUE ...``, such as variables of an environment."""
    return dict(word.split("=", 1) for word in words.split())
