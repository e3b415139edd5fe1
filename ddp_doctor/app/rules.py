"""Rules by their code or name."""

from ddp_doctor.app.outcome import UsageError
from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.model.rule import Rule


def find_rule(code: str) -> Rule:
    """The rule with this code or name. Raises UsageError."""
    for rule in all_rules():
        if code.upper() == rule.code or code == rule.name:
            return rule
    raise UsageError(
        f"there is no rule {code!r}; the codes stand in every finding and in `ddp-doctor checks`"
    )
