"""Rules by their code or name."""

from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.lint.rules import RULES as LINT_RULES
from ddp_doctor.model.rule import Described
from ddp_doctor.model.usage import UsageError


def find_rule(code: str) -> Described:
    """The rule with this code or name, on recordings or on scripts. Raises UsageError."""
    for rule in (*all_rules(), *LINT_RULES):
        if code.upper() == rule.code or code == rule.name:
            return rule
    raise UsageError(
        f"there is no rule {code!r}; the codes stand in every finding and in `ddp-doctor checks`"
    )
