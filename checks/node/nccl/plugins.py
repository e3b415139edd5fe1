"""DD231-DD235: plug-ins of NCCL that are missing, lack a library, or are only on some nodes."""

from collections.abc import Callable, Iterator

from ddp_doctor.facts.node.nccl import NcclFact, Plugin
from ddp_doctor.knowledge.network.nccl_plugins import OWN_NETWORKS
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Proof, Remedy, Setting
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.kinds import by_installation, remedy
from ddp_doctor.settings.wording import printable
from ddp_doctor.views.reproducers import meeting
from ddp_doctor.views.software import nccl_of_gpu_nodes
from ddp_doctor.wording.findings import NOBODY, likely
from ddp_doctor.wording.nodes import by_cause, node_names, of_nodes

_SOURCE = "NCCL src/plugin/plugin_open.cc, net.cc, tuner.cc and profiler.cc"
_INSTEAD = {
    "net": "NCCL then uses its own InfiniBand or plain sockets",
    "tuner": "NCCL then chooses algorithms by its own model",
    "profiler": "NCCL then profiles nothing",
}


@rule("DD231", "nccl-plugin-missing", Consequence.RISK, NcclFact)
def nccl_plugin_missing(recording: Recording) -> Iterator[Draft]:
    """The linker does not find a plug-in that a setting names.

    Finds: NCCL_NET_PLUGIN, NCCL_TUNER_PLUGIN or NCCL_PROFILER_PLUGIN, from the environment or nccl.conf, names a
        library that is neither in LD_LIBRARY_PATH nor in the linker's cache or its own, conda's or torch's
        directories. Information if it is a profiler. "none" turns plug-ins off and is not a fault.
    Why: NCCL skips it with one line of level INFO. A job meant for EFA or SHARP silently runs over plain sockets,
        several times slower.
    Remedy: Add its directory to LD_LIBRARY_PATH, or unset the variable.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for plugin, group in _plugins(recording, _is_missing).items():
        name, variable = printable(plugin.asked), plugin.setting or ""
        yield likely(
            of_nodes(recording, group),
            f"NCCL on {{who}} cannot find plug-in {name} set in {variable}",
            Evidence(text=f"no {name} in the search path of dlopen", expected_from=_SOURCE),
            *map(in_folder, plugin.elsewhere[:1]),
            Remedy(
                summary=f"Unset {variable} in the job's environment",
                settings=(Setting(name=variable, action="unset", why="the plug-in it names is missing"),),
                cost="NCCL chooses the plug-in itself",
                undo=f"restore {variable}",
                proof=Proof(reason="nothing to measure: the plug-in it names is missing"),
            ),
            detail=f"{_INSTEAD[plugin.kind]}, and reports it only at log level INFO.",
            severity=_severity(recording, plugin),
        )


def _severity(recording: Recording, plugin: Plugin) -> Severity:
    """Return the severity of a plug-in that is not loaded: an error for the network of a job on several nodes."""
    if not plugin.setting or plugin.kind == "profiler":
        return Severity.INFO
    return Severity.ERROR if plugin.kind == "net" and recording.several_nodes else Severity.WARNING


def _is_missing(plugin: Plugin) -> bool:
    return plugin.setting is not None and plugin.path is None and not plugin.unclear


@rule("DD232", "nccl-plugin-lacks-library", Consequence.RISK, NcclFact)
def nccl_plugin_lacks_library(recording: Recording) -> Iterator[Draft]:
    """NCCL finds a plug-in but cannot load it.

    Finds: ldd does not find a library that the plug-in needs, except libraries that torch itself has loaded
        (CUDA's, NCCL). Information for a profiler, and for a plug-in that no setting requests.
    Why: dlopen fails, and NCCL logs it at level INFO and continues without it: a job meant for EFA or SHARP runs
        over plain sockets.
    Remedy: Install the missing library, or add its directory to LD_LIBRARY_PATH; or turn plug-ins off with "none".
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for plugin, group in _plugins(recording, lambda plugin: bool(plugin.path and plugin.missing)).items():
        lost = ", ".join(plugin.missing)
        brought = f", brought by {plugin.brought_by}" if plugin.brought_by else ""
        yield likely(
            of_nodes(recording, group),
            f"NCCL cannot load {plugin.path} on {{who}}: it needs {lost}",
            Evidence(text=f"ldd {plugin.path}{brought}: {lost} not found", expected_from=_SOURCE),
            by_installation(
                f"Install {lost}, or add its directory to LD_LIBRARY_PATH",
                cost="changes the environment of every job on the node",
                undo="remove it",
            ),
            detail=f"{_INSTEAD[plugin.kind]}, and reports it only at log level INFO.",
            severity=_severity(recording, plugin),
        )


@rule("DD233", "nccl-network-that-none-has", Consequence.FAILS, NcclFact)
def nccl_network_that_none_has(recording: Recording) -> Iterator[Draft]:
    """NCCL_NET names a plug-in's network, but no plug-in can be loaded.

    Finds: NCCL_NET is neither IB nor Socket, and no network plug-in can be loaded: none is found, those found lack
        a library, or NCCL_NET_PLUGIN=none.
    Why: NCCL never falls back from the network that NCCL_NET names: ncclCommInitRank fails on every rank with
        "network … not found" or "Failed to initialize any NET plugin".
    Remedy: Add the plug-in's directory to LD_LIBRARY_PATH, or unset NCCL_NET.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for (name, elsewhere), group in by_cause(nccl_of_gpu_nodes(recording), _nobodys_network).items():
        yield likely(
            of_nodes(recording, group),
            f'No NCCL plug-in on {{who}} provides the network of NCCL_NET="{printable(name)}"',
            Evidence(text="no loadable network plug-in", expected_from="NCCL src/plugin/net.cc, ncclNetInit"),
            *([in_folder(elsewhere)] if elsewhere else []),
            nccl.by_setting(
                "Unset NCCL_NET in the job's environment",
                Setting(name="NCCL_NET", action="unset", why="the plug-in it names is missing"),
                cost="NCCL chooses the plug-in itself",
                undo="restore NCCL_NET",
            ),
            detail="NCCL uses no other network instead, so the job fails when its ranks connect.",
        ).model_copy(update={"reproduced_by": meeting(recording, [node.node for node in group])})


def _nobodys_network(fact: NcclFact) -> tuple[str, str | None] | None:
    if fact.network is None or fact.network.lower() in OWN_NETWORKS or _has_network_plugin(fact):
        return None
    return fact.network, _unsearched_plugin_folder(fact)


def _has_network_plugin(fact: NcclFact) -> bool:
    return any(network.works for network in fact.networks())


def _unsearched_plugin_folder(fact: NcclFact) -> str | None:
    return next((folder for network in fact.networks() for folder in network.elsewhere), None)


def _plugins(recording: Recording, chosen: Callable[[Plugin], bool]) -> dict[Plugin, list[FactAt[NcclFact]]]:
    return grouped(
        (plugin, node) for node in nccl_of_gpu_nodes(recording) for plugin in filter(chosen, node.fact.plugins)
    )


def in_folder(folder: str) -> Remedy:
    """Add a directory with a plug-in to the linker's search path; its name is from a built-in table."""
    return remedy(
        f"Add {folder}, which has a plug-in, to LD_LIBRARY_PATH",
        f'export LD_LIBRARY_PATH="{folder}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"',
        scope="job",
        cost="other libraries in that directory are also found",
        undo="remove the directory from LD_LIBRARY_PATH",
        untried="ddp-doctor does not load plug-ins",
    )


@rule("DD234", "efa-without-plugin", Consequence.SLOWER, NcclFact)
def efa_without_plugin(recording: Recording) -> Iterator[Draft]:
    """A node has Elastic Fabric Adapters, but no plug-in that lets NCCL use them.

    Finds: RDMA devices of the kernel's driver efa, and no network plug-in that loads; NCCL_NET does not request
        sockets. Information for a job of one node, which needs no network.
    Why: NCCL's own InfiniBand transport does not support EFA. The nodes communicate over plain sockets on the first
        Ethernet interface, at a fraction of the rate.
    Remedy: Let the linker find aws-ofi-nccl, or install it.
    See: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html
    """
    for (devices, folder), group in by_cause(nccl_of_gpu_nodes(recording), _idle_efa).items():
        have = "has" if len(group) == 1 else "each have"
        yield likely(
            of_nodes(recording, group),
            f"{{who}} {have} {devices} EFA devices, but no plug-in for NCCL",
            Evidence(text="no loadable network plug-in", expected_from="aws/aws-ofi-nccl README"),
            in_folder(folder) if folder else _INSTALL,
            detail="The nodes then use plain sockets, at a fraction of the rate.",
            severity=Severity.ERROR if recording.several_nodes else Severity.INFO,
        )


def _idle_efa(fact: NcclFact) -> tuple[int, str | None] | None:
    if not fact.efa_devices or (fact.network or "").lower() == "socket" or _has_network_plugin(fact):
        return None
    return len(fact.efa_devices), _unsearched_plugin_folder(fact)


_INSTALL = by_installation(
    "Install aws-ofi-nccl (it comes with the EFA installer), on the node or in the image",
    cost="a new image, or a few minutes per node",
    undo="remove the package",
)


@rule("DD235", "network-plugin-on-some-nodes", Consequence.FAILS, NcclFact)
def network_plugin_on_some_nodes(recording: Recording) -> Iterator[Draft]:
    """Some nodes of the job can load a network plug-in, and others cannot.

    Finds: Some of the nodes with GPUs have a network plug-in that loads, and some have none. Not reported if
        NCCL_NET requests one of NCCL's own networks.
    Why: Each node chooses its own network, and the handles of two networks are incompatible: the ranks fail or hang
        when they connect.
    Remedy: Start the job in the same image, with the same LD_LIBRARY_PATH, on all nodes; or disable plug-ins on all
        with NCCL_NET_PLUGIN=none.
    See: NCCL src/plugin/net.cc, ncclNetInit
    """
    asked = [node for node in nccl_of_gpu_nodes(recording) if (node.fact.network or "").lower() not in OWN_NETWORKS]
    having = [node for node in asked if _has_network_plugin(node.fact)]
    without = [node for node in asked if node not in having]
    if not having or not without:
        return
    path = next(network.path for node in having for network in node.fact.networks() if network.works) or "it"
    fewer = min(having, without, key=len)
    yield likely(
        of_nodes(recording, fewer) if len(having) != len(without) else NOBODY,
        f"NCCL finds a network plug-in on {node_names(recording, having)}, but no loadable"
        f" one on {node_names(recording, without)}",
        Evidence(
            text=f"{path} on {node_names(recording, having)} only", expected_from="NCCL src/plugin/net.cc, ncclNetInit"
        ),
        by_installation(
            "Use the same image and LD_LIBRARY_PATH on all nodes, or NCCL_NET_PLUGIN=none on all",
            scope="job",
            cost="without a plug-in, NCCL uses its own InfiniBand or sockets: no EFA, no SHARP",
            undo="restore the previous lines",
        ),
        detail="Nodes with different networks fail or hang when they connect.",
    )
