"""fit: whether a model fits in GPU memory, and with which strategy. One rank estimates, all ranks measure."""

from ddp_doctor.features import Recorded, later
from ddp_doctor.features.model.fit import estimated, measured
from ddp_doctor.features.model.fit.report import FitReport
from ddp_doctor.features.model.fit.views import unknown

FEATURE = Recorded(
    checks=(estimated.CHECK, measured.CHECK),
    reads=("node.software", "node.gpus"),
    in_parts=(measured.CHECK.id,),
    report=FitReport,
    complete=later("fit", ".verdict", "with_estimates"),
    healthy=later("fit", ".verdict", "healthy"),
    unmet=later("fit", ".verdict", "unmet"),
    unknown=unknown,
    has_plain_errors=True,
    tables=later("fit", ".table", "tables"),
    lists_checks=True,
    bars=later("fit", ".bars", "memory"),
)
