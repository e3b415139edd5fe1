"""compare: a run with an earlier run or a baseline, or the traces of two jobs."""

from ddp_doctor.features import Feature
from ddp_doctor.model.report import Report

FEATURE = Feature(report=Report)
