"""How the rules of this check show what they saw."""

from ddp_doctor.model.finding import Evidence


def observed(text: str, expected_from: str) -> Evidence:
    """What was read, and what it was held against."""
    return Evidence(check="software", text=text, expected_from=expected_from)
