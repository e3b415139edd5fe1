"""How the tests run: examples without a clock, and ``serial`` tests found without reading all modules."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

#: How long an example takes says how busy the machine is: no test of properties asks for it. Continuous integration
#: tries the same examples each time, so that a change is refused for what it does; every other run looks for new ones.
settings.register_profile(
    "steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("steady")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only serial tests are wanted, modules without any are not imported: all of them take some seconds."""
    only_serial = re.search(r"(?<!not )\bserial\b", config.option.markexpr)
    is_module = collection_path.suffix == ".py"
    return True if only_serial and is_module and "mark.serial" not in collection_path.read_text() else None
