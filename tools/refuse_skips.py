"""Fail if a test was skipped that this machine should be able to run.

    python -m tools.refuse_skips JUNIT.xml ...

Reads pytest's JUnit files. Continuous integration installs every tool the tests need, so a skip means that something is
untested without anyone noticing.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

#: Reasons that no installable package would remove.
ALLOWED = (
    re.compile(r"beside the checkout"),  # a collection of real topologies that not every developer has
    re.compile(r"no control group can be made here|controller is not given"),  # an unprivileged container
    re.compile(r"this machine has an NVIDIA driver"),
)


def refused(junit: Path) -> Iterator[str]:
    """Yield ``test: reason`` for every skip that is not allowed."""
    for case in ET.parse(junit).iter("testcase"):  # noqa: S314 - written by our own pytest
        skipped = case.find("skipped")
        if skipped is None or skipped.get("type") == "pytest.xfail":
            continue
        reason = skipped.get("message") or ""
        if not any(allowed.search(reason) for allowed in ALLOWED):
            yield f"{case.get('classname')}.{case.get('name')}: {reason}"


def main(paths: list[str]) -> int:
    """Return 0 if all skips are allowed, or 1 with one line each on stderr."""
    found = [line for path in paths for line in refused(Path(path))]
    for line in found:
        sys.stderr.write(f"skipped, but must run here: {line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
