"""The network interfaces: which one gloo and NCCL choose on each node, and whether the choices fit together.

Each backend chooses by its own rules, gives that address to the other nodes, and waits there. With a host name that
resolves to 127.0.1.1, a missing interface, or a docker0 with the same address everywhere, the job hangs, blames healthy
nodes, or runs only until the next node joins. knowledge/network/interface_choice.py predicts the choice; if libnccl is
installed, it is asked. Raw input::

    lo 127.0.0.1/8, eth0 10.0.0.1/24 fe80::1%eth0/64 (up, running), docker0 172.17.0.1/16   getifaddrs(3)
    node0 -> 127.0.1.1                                                                      getaddrinfo(3)
    32768	60999                                    /proc/sys/net/ipv4/ip_local_port_range
    {"version_code": 22907, "address": "10.0.0.1"}   libnccl's unique id
"""

from collections.abc import Mapping, Sequence

from ddp_doctor.checks.node.interfaces import rules
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.interface_choice import NCCL_COMM_ID, SETTINGS, Choice, gloo_choice, nccl_choice
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context, Interface
from ddp_doctor.model.fact import Failed
from ddp_doctor.model.rule import rules_in
from ddp_doctor.parse.redact import open_and_withheld, shielded
from ddp_doctor.probing import nccl_interface
from ddp_doctor.probing.kernel_files import port_range

#: A name that takes longer counts as unresolvable: each rank would wait for it at every start.
RESOLVE_LIMIT_S = 2.0


def probe(ctx: Context) -> InterfacesFact:
    """Read the interfaces and predict the choices. Raises Failed if they cannot be listed."""
    try:
        found = ctx.interfaces()
    except OSError as error:
        raise Failed(f"cannot list the network interfaces: {error}") from None
    hostname = ctx.hostname()
    own, problem = _own_addresses(ctx, hostname)
    nccl_env = shielded(nccl_interface.nccl_environment(ctx), SETTINGS)
    foretold = nccl_choice(found, nccl_env)
    return InterfacesFact(
        interfaces=found,
        hostname=hostname,
        hostname_addresses=own or (),
        hostname_error=problem,
        gloo=gloo_choice(found, shielded(ctx.env, SETTINGS), own),
        nccl=foretold,
        libnccl=_libnccl(ctx, foretold, nccl_env, found),
        settings=open_and_withheld({name: nccl_env[name] for name in SETTINGS if nccl_env.get(name)})[0],
        port_range=port_range(ctx),
        host_id=_host_id(ctx),
    )


def _own_addresses(ctx: Context, hostname: str) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the addresses of the host's own name and the problem, if any; addresses are None after a timeout."""
    try:
        return ctx.resolve(hostname, RESOLVE_LIMIT_S), None
    except TimeoutError:
        return None, f"no answer within {RESOLVE_LIMIT_S:g} s"
    except OSError as error:
        return (), error.strerror or str(error)


def _libnccl(ctx: Context, foretold: Choice, env: Mapping[str, str], found: Sequence[Interface]) -> Choice | None:
    if NCCL_COMM_ID in env:
        return None  # the id would contain that address instead of a choice
    answer = ctx.child("nccl_interface")
    ctx.keep(answer.stdout)
    chosen = nccl_interface.library_choice(answer, found)
    return chosen and chosen.model_copy(update={"setting": foretold.setting})


def _host_id(ctx: Context) -> str | None:
    try:
        boot = ctx.read("/proc/sys/kernel/random/boot_id").strip()
        return f"{boot} {ctx.readlink('/proc/self/ns/net')}"
    except OSError:
        return None


CHECK = Check(
    id="interfaces",
    title="Network interfaces that gloo and NCCL take on each node",
    where=Where.NODE,
    probe=probe,
    facts=(InterfacesFact,),
    rules=rules_in(rules),
    cost_s=0.1,
    deadline_s=6.0,
    stops_ranks=True,
)
