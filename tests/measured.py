"""The variables that coverage needs in tests that start a process with a separate environment."""

import os

MEASURED = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
