"""The environment: launch variables, and the variables of NCCL, torch, gloo and torchrun.

A job accepts its environment without a message. With a RANK left over from yesterday, a script waits for seven ranks
that never start. NCCL_IB_DISABLE=true does not disable InfiniBand, and NCCL_TIMEOUT is never read.
Raw input; only such names are recorded, and no value that looks like a credential::

    RANK=3 MASTER_PORT=29500 PET_NNODES=2 NCCL_IB_DISABLE=true NCCL_SOCKET_IFNAM=eth0 LOGLEVEL=debug
"""

from ddp_doctor.checks.node.env_vars import costs, counts, devices, hosts, launch, meeting, names, options, values
from ddp_doctor.facts.node.env_vars import EnvVars, SettingOrigins, SettingText
from ddp_doctor.knowledge import launchers
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.rule import rules_in
from ddp_doctor.parse.redact import open_and_withheld
from ddp_doctor.settings.names import is_recorded


def probe(ctx: Context) -> EnvVars:
    """Read the environment. Never fails; an empty environment is valid."""
    recorded = {name: value for name, value in ctx.env.items() if is_recorded(name) or name in launchers.OTHERS}
    known, withheld = open_and_withheld(recorded)
    return EnvVars(
        variables=known,
        withheld=withheld,
        launcher=launchers.launcher_of(ctx.env),
        in_kubernetes="KUBERNETES_SERVICE_HOST" in ctx.env,
        unreadable={name: why for name in hosts.FILES if name in known and (why := _unreadable(ctx, known[name]))},
    )


def _unreadable(ctx: Context, path: str) -> str | None:
    try:
        ctx.read(path)
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:
        return "no path"
    return None


CHECK = Check(
    id="env_vars",
    title="Environment variables",
    where=Where.NODE,
    probe=probe,
    facts=(EnvVars, SettingText, SettingOrigins),
    rules=rules_in(names, costs, devices, hosts, launch, values, meeting, options, counts),
    cost_s=0.01,
)
