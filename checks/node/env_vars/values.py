"""DD121, DD122: values that do something else than they say, or that stop the job."""

from collections.abc import Iterable

from ddp_doctor.checks.node.env_vars import environment
from ddp_doctor.checks.node.env_vars.in_force import say
from ddp_doctor.facts.env_vars import EnvVars
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule


@rule("DD121", "value-read-otherwise", Severity.WARNING, EnvVars)
def value_read_otherwise(recording: Recording) -> Iterable[Draft]:
    """A value that does not do what it says.

    What it finds
        NCCL_IB_DISABLE=true (read as 0), NCCL_BUFFSIZE=4M (4 bytes), NCCL_P2P_LEVEL=sys (ignored),
        NCCL_DEBUG_FILE with %r, patterns among interface names, quotes that became part of the value.
        Information only where the value is empty, or logs alone suffer.

    Why it matters
        The library takes something else, or its default, and says nothing.

    Remedy
        Write the value as the library reads it.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    return say(recording, lambda one: environment.misread_values(one.seen.fact, one.installed))


@rule("DD122", "value-refused", Severity.ERROR, EnvVars)
def value_refused(recording: Recording) -> Iterable[Draft]:
    """A value on which torch, gloo or torchrun stops.

    What it finds
        TORCH_NCCL_BLOCKING_WAIT=on, TORCH_DISTRIBUTED_DEBUG=1, GLOO_SOCKET_IFNAME=^lo, LOGLEVEL=debug.
        A warning only where torchrun, or another backend than this run's, reads it.

    Why it matters
        The job ends before its first step, or hangs in init_process_group (TORCH_FR_BUFFER_SIZE=many).

    Remedy
        Write one of the values that are accepted, or unset the variable.

    References
        torch/csrc/distributed/c10d/Utils.hpp, getCvarBool and getCvarInt
    """
    return say(recording, lambda one: environment.refused_values(one.backend, one.seen.fact, one.installed))
