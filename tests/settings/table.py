"""Every bad setting and every clean environment, and what the doctor says of it; printed as a table.

    python -m tests.settings.table

A line is: bad or clean | settings or environment | code | severity | title. tests/settings/test_settings.py asserts it.
"""

from collections.abc import Iterator

from tests.settings.cases import Case, bad, clean


def lines() -> Iterator[tuple[str, str, str, str, str]]:
    """The rows of the table."""
    for kind, cases in (("bad", bad()), ("clean", clean())):
        for case in cases:
            yield from _rows(kind, case)


def _rows(kind: str, case: Case) -> Iterator[tuple[str, str, str, str, str]]:
    found = case.findings()
    if not found:
        yield kind, case.name, "-", "-", ""
    for one in found:
        yield kind, case.name, one.code, one.severity.value, one.title


def main() -> None:
    """Print the table."""
    for line in (("kind", "settings or environment", "code", "severity", "title"), *lines()):
        print("{:<5} | {:<58} | {:<5} | {:<8} | {}".format(*line))


if __name__ == "__main__":
    main()
