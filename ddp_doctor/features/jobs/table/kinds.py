"""Causes of failed jobs, as data: a cause, the texts in a job's output that are signs of it, and its fixes."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from ddp_doctor.features.jobs.table.signs import Sign
from ddp_doctor.model.choices import Domain, Restart
from ddp_doctor.model.finding import Remedy

CUDA_ERRORS = "CUDA runtime, texts of cudaGetErrorString"


class JobCause(NamedTuple):
    """A cause of failed jobs. ``name`` is its class in the report.

    ``title`` is a sentence. Names in braces are values of the sign's pattern, and ``{who}`` is the ranks or hosts that
    printed it. ``next_check`` is a command or a setting that would prove it. ``instead_of``: classes whose signs are
    symptoms of this one, so they are not named along with it. ``found_by``: codes of rules that find it before a job or
    in its script, the likeliest first.
    """

    name: str
    title: str
    finds: str
    why: str
    remedies: tuple[Remedy, ...]
    next_check: str
    references: tuple[str, ...]
    domain: Domain = "unknown"
    restart: Restart = "unknown"
    signs: Mapping[str, Sign] = {}
    instead_of: tuple[str, ...] = ()
    found_by: tuple[str, ...] = ()
    code: str = ""  # its key in the table


#: Causes by the place of the fault, and whether the same job may be started again. "no" means that a person has to fix
#: something first.
code_cause = partial(JobCause, domain="code", restart="no")
host_cause = partial(JobCause, domain="host", restart="no")
network_cause = partial(JobCause, domain="network", restart="no")
sick_host = partial(JobCause, domain="host", restart="on other nodes")
sick_gpu = partial(JobCause, domain="gpu", restart="on other nodes")
sick_network = partial(JobCause, domain="network", restart="on other nodes")
scheduler_cause = partial(JobCause, domain="scheduler", restart="on the same nodes")
