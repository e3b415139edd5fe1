"""What NCCL would read and load on a node, and of which nodes the rules on plug-ins speak."""

from ddp_doctor.model.finding import Evidence


def observed(text: str, expected_from: str) -> Evidence:
    """What was read, and what it was held against."""
    return Evidence(check="nccl", text=text, expected_from=expected_from)
