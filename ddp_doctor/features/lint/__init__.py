"""``ddp-doctor lint``: rules over a training script's syntax tree. The script is read, never imported or run.

linting.py applies the rules to a file, report.py builds the report, render/ writes it. A rule is a function from a
Script to Spots (rule.py, rules/). A Script has the calls in execution order (trace.py), the origins of values
(values.py), ranks (ranks.py), and the libraries that do the script's work (script.py).
"""

from ddp_doctor.features import Feature
from ddp_doctor.features.lint.report import LintReport
from ddp_doctor.features.lint.rules import RULES

FEATURE = Feature(
    report=LintReport,
    about_rules=f"{'lint':<15} Mistakes in training scripts, reported by `ddp-doctor lint`",
    rules=lambda: RULES,
)
