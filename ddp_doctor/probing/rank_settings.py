"""What one node hands in for the comparison, beside what other checks read of it."""

from collections.abc import Mapping

from ddp_doctor.facts.cluster import Settings
from ddp_doctor.parse.redact import open_and_withheld
from ddp_doctor.settings.agreement import is_compared
from ddp_doctor.settings.names import is_recorded


def settings_of(env: Mapping[str, str]) -> Settings:
    """What one process has to tell its peers."""
    compared = {name: value for name, value in env.items() if is_recorded(name) and is_compared(name)}
    variables, withheld = open_and_withheld(compared)
    return Settings(variables=variables, withheld=withheld)
