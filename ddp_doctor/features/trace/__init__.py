"""trace: where the time of a job's steps goes, from the profiler's traces of its ranks.

Raw input, read only by ``ddp-doctor trace``: Chrome JSON as torch.profiler writes it, one file per rank::

    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 579, "tid": 579,
     "ts": 4932381953313.155, "dur": 28255.624, "args": {"External id": 1}}
    {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 579, "tid": 631,
     "ts": 4932381956389.780, "dur": 16268.645, "args": {}}

A waiting rank shows long collectives, and a late rank shows short ones.
"""

from ddp_doctor.features import Recorded, later
from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.report import TraceReport, healthy, scope, with_steps
from ddp_doctor.features.trace.rules import communication, late_rank, step
from ddp_doctor.features.trace.table import tables
from ddp_doctor.features.trace.views.windows import problem
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Fact, Skip
from ddp_doctor.model.rule import rules_in


def probe(_ctx: Context) -> Fact:
    """Skip, because traces are given on the command line."""
    raise Skip("no trace was given")


CHECK = Check(
    id="trace",
    title="A step computes, and no rank waits",
    where=Where.FILES,
    probe=probe,
    facts=(TraceFact,),
    rules=rules_in(late_rank, step, communication),
    untested=problem,
)

FEATURE = Recorded(
    checks=(CHECK,),
    report=TraceReport,
    complete=with_steps,
    scope=scope,
    healthy=healthy,
    label="Slow",
    tables=tables,
    bars=later("trace", ".bars", "steps"),
    files=("part", "file"),
    indent=None,
    side=later("trace", ".shared", "read_side"),
    collectives=later("trace", ".shared", "job_collectives"),
)
