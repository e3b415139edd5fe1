"""All lint rules in the order of their codes. A new rule is a function in a module of its topic, and a line here.

Each has samples in tests/lint/samples: ``DDL101_*_bad.py``, in which the comment ``# expect: DDL101`` stands on every
line that it reports, and ``DDL101_*_good.py``, in which nothing is reported.
"""

from ddp_doctor.lint.rule import LintRule
from ddp_doctor.lint.rules import wrapping

RULES: tuple[LintRule, ...] = (
    wrapping.data_parallel,
    wrapping.wrapped_before_moved,
    wrapping.sync_batchnorm_after_wrapping,
)
