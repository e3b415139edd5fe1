"""For tests that start a process with an environment of their own: what coverage needs in it."""

import os

MEASURED = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
