"""Causes in the network as NCCL chooses it: addresses, interfaces, firewalls, plug-ins.

Messages of NCCL when it cannot connect, by version::

    Connect to 10.0.0.2<41234> failed : No route to host                                                  2.4 to 2.9
    Net : Connect to 10.0.0.2<41234> failed : No route to host                                            2.10 to 2.15
    socketStartConnect: Connect to 10.0.0.2<41234> failed : Software caused connection abort              2.16 to 2.23
    socketPollConnect: Connect to 10.0.0.2<41234> returned 110(Connection timed out) errno 115(…)         2.20 to 2.23
    socketStartConnect: Connect to 10.0.0.2<41234> failed : No route to host                              2.24 to 2.26
    socketPollConnect: connect to 10.0.0.2<41234> returned Connection timed out, exceeded error retry count after 35
        attempts                                                                                          2.27 on
    ncclOsSocketPollConnect to 10.0.0.2<41234> failed with error …                                        2.29 on

and torch's store: "The client socket has failed to connect to [node0]:29500 (errno: 110 - Connection timed out)."
A refused connection is not due to a firewall: no process listens there, because the peer has exited or not started.
"""

from ddp_doctor.features.jobs.table.kinds import host_cause, network_cause, sick_host, sick_network
from ddp_doctor.features.jobs.table.remedies import on_node, remedy, setting
from ddp_doctor.features.jobs.table.signs import Sign, context, launcher, nccl

_SOCKETS = "NCCL 2.4 to 2.30, src/misc/socket.cc and src/os/linux.cc"
_BOOTSTRAP = "NCCL 2.3 to 2.30, src/bootstrap.cc, src/transport/net_socket.cc and src/transport/net_ib/init.cc"
_PLUGINS = "NCCL 2.4 to 2.30, src/plugin/net.cc and src/plugin/plugin_open.cc"
_CONNECT = ("connect to ", "Connect to ")
#: Loopback, link-local, and the default bridges of Docker and libvirt.
_OWN = r"127\.|169\.254\.|fe80:|::1<|172\.17\.|192\.168\.122\."
#: … without loopback, where ranks of one node meet.
_ONE_LINK = r"(?:169\.254\.|fe80:|172\.17\.|192\.168\.122\.)"
_PEER = r"[cC]onnect to (?P<peer>{address}[^\s<]{{1,60}})<(?P<port>\d+)>"
_NO_WAY = (
    r"(?:failed(?: with error)?|returned)[ :]{1,3}(?:\d+\()?(?P<reason>Connection timed out|No route to host"
    r"|Network is unreachable|Host is down|Operation timed out|Software caused connection abort)"
)
_UNREACHED = r"(?P<reason>No route to host|Connection timed out|Network is unreachable|Operation timed out)"
_NO_INTERFACE = (
    "Bootstrap : no socket interface found",
    "NET/Socket : no interface found",
    "NET/Socket : No usable listening interface found",
    "NET/IB : No IP interface found",
)
_NAME = setting("NCCL_SOCKET_IFNAME", "eth0", "the interface that joins the nodes; ip route get PEER names it")

#: Signs that belong to no cause: no process listens there yet, or any longer.
SIGNS = {
    "connect-refused": nccl.victim(_CONNECT, rf"{_PEER.format(address='')}(?:[^\n]*?)Connection refused(?!, retrying)"),
    "interface-set": context("NCCL_SOCKET_IFNAME set", r"NCCL_SOCKET_IFNAME set (?:by \w+ )?to"),
    # Each rank is alone on its node, according to the launcher's options.
    "one-rank-a-node": context(
        ("nproc_per_node", "nproc-per-node", "ntasks-per-node", "LOCAL_WORLD_SIZE"),
        r"(?:nproc[_-]per[_-]node|ntasks-per-node|LOCAL_WORLD_SIZE)[= ]1\b",
    ),
}

CAUSES = {
    "DDJ140": sick_network(
        name="firewall-or-unreachable",
        title="A connection from {who}[ to {peer}][ port {port}] fails[: {reason}]",
        finds="A connection between two nodes times out or has no route.",
        why="Ranks connect over ports that the kernel chooses. With a firewall that opens only the master's port,"
        " or with a node in another network, the rendezvous succeeds but NCCL fails.",
        remedies=(
            remedy(
                "Allow all TCP ports between the nodes, or the kernel's ephemeral ports",
                "cat /proc/sys/net/ipv4/ip_local_port_range",
                "firewall-cmd --permanent --zone=trusted --add-source=NETWORK && firewall-cmd --reload",
                scope="cluster",
            ),
            remedy("Set the interface between the nodes on all nodes", settings=(_NAME,)),
        ),
        next_check="run python3 -m http.server PORT on the peer and curl -m 5 PEER:PORT"
        " here, or ddp-doctor run on both nodes",
        references=(_SOCKETS, "torch 2.15 c10d/socket.cpp"),
        signs={
            "nccl-cannot-connect": nccl.sign(
                _CONNECT, rf"{_PEER.format(address=f'(?!{_OWN})')}[^\n]{{0,60}}? {_NO_WAY}(?!, retrying)"
            ),
            "nccl-connect-failed": nccl.sign(  # NCCL 2.2 and 2.3, which do not print the address
                "Call to connect failed : ",
                r"Call to connect failed : (?P<reason>Connection timed out|No route to host|Network is unreachable)",
            ),
            "nccl-tries-used-up": nccl.sign(  # the last of its tries
                "connect returned ",
                r"connect returned (?P<reason>No route to host|Connection timed out), retrying"
                r" \((?P<all>\d+)/(?P=all)\)",
            ),
            "nccl-connect-timed-out": nccl.sign(
                "exceeded timeouts (", r"socket(?:Start|Poll)Connect: exceeded timeouts"
            ),
            "mpi-cannot-connect": Sign(  # Open MPI's help texts
                "was unable to complete a TCP connection"
            ),
            "store-cannot-connect": Sign(
                "client socket has failed to connect to",
                r"connect to \[?(?P<peer>(?!localhost)[^\s\],]{1,80})\]?:(?P<port>\d+) \(errno: (?:110|113"
                r"|101) - (?P<reason>[^)]+)\)",
            ),
            "gloo-cannot-connect": Sign(
                ("SO_ERROR: No route to host", "SO_ERROR: Connection timed out", "SO_ERROR: Network is unreachable"),
                rf"SO_ERROR: {_UNREACHED}, remote=\[(?:::ffff:)?(?P<peer>[^\]\s]{{1,80}})\]:(?P<port>\d{{1,5}})",
            ),
            "gloo-connect-failed": Sign(  # older gloo
                "] connect [",
                rf"\] connect \[(?:::ffff:)?(?P<peer>[^\]\s]{{1,80}})\]:(?P<port>\d{{1,5}}): {_UNREACHED}",
            ),
            "ssh-cannot-connect": launcher.sign(
                "ssh: connect to host ",
                rf"ssh: connect to host (?P<peer>\S{{1,255}}) port (?P<port>\d{{1,5}}): {_UNREACHED[:-1]}"
                r"|Connection refused)",
            ),
            "connection-not-permitted": Sign(  # a sandbox, or a filter on this host
                ("(errno: 1 - Operation not permitted", "(errno: 13 - Permission denied"),
                r"connect to \[?(?P<peer>[^\s\],]{1,255}?)\]?:(?P<port>\d{1,5}) \(errno: (?:1"
                r"|13) - (?P<reason>[^)]+)\)",
            ),
        },
    ),
    "DDJ214": host_cause(
        name="ssh-login-failed",
        title="The launcher cannot log in to {who} with ssh",
        finds="DeepSpeed's launcher, mpirun or pdsh starts a process on another node with ssh, and ssh fails.",
        why="No rank was started on that host. Launchers cannot answer password prompts, and the host's name or key"
        " may be unknown.",
        remedies=(
            on_node("Allow logins without a password from the launching node", "ssh-copy-id HOST"),
            remedy("Write the hosts into the hostfile as ssh knows them, or remove it for a job on one node"),
        ),
        next_check="ssh -o BatchMode=yes HOST hostname",
        references=("DeepSpeed deepspeed/launcher/runner.py", "Open MPI help-errmgr-base.txt", "ssh(1)"),
        signs={
            "host-not-reachable": launcher.proof(
                " was not reachable via ssh", r"host=(?P<host>[\w.:-]{1,255}) was not reachable"
            ),
            "ssh-refused": launcher.sign(
                ("Host key verification failed", ": Permission denied ("),
                r"^(?!.*\bgit@)(?:Host key verification failed|.*@(?P<host>[\w.:-]{1,255}): Permission denied \()",
            ),
        },
    ),
    "DDJ141": host_cause(
        name="no-socket-interface",
        title="NCCL finds no network interface with an address on {who}",
        finds="NCCL finds no suitable interface: only loopback and bridges, or none that is up.",
        why="Even on a single node, NCCL needs an address that the ranks can use. A container without a network"
        " has none.",
        remedies=(
            remedy("Use the host's network in the container", container=("--network=host",)),
            remedy(
                "Let NCCL use loopback on a single node",
                settings=(setting("NCCL_SOCKET_IFNAME", "lo", "all ranks are on one node"),),
                cost="jobs on several nodes cannot start with it",
            ),
        ),
        next_check="ip -br addr in the job's container; env | grep NCCL_SOCKET",
        references=(_BOOTSTRAP,),
        found_by=("DD105", "DD521"),
        signs={
            "no-interface": nccl.proof(_NO_INTERFACE),
            "no-address-family": nccl.sign(  # an interface without an address: NCCL up to 2.23
                "Socket creation failed : ", r"Socket creation failed : Address family not supported"
            ),
        },
    ),
    "DDJ142": network_cause(
        name="socket-ifname-wrong",
        title="NCCL on {who} uses the wrong network interface[: no {interface} there][:"
        " {peer} is a different machine on each node]",
        finds="NCCL_SOCKET_IFNAME names an interface that does not exist, or ranks connect to an address of"
        " loopback, a container's bridge or a point-to-point link.",
        why="By default, NCCL uses the first interface it finds. An address such as 127.0.0.1 or 172.17.0.1"
        " belongs to a different machine on each node.",
        remedies=(remedy("Set the interface between the nodes, with each node's own name for it", settings=(_NAME,)),),
        next_check='ip -br addr on each node; NCCL_DEBUG=INFO shows the choice behind "Bootstrap: Using"',
        references=(_SOCKETS, _BOOTSTRAP),
        instead_of=("no-socket-interface",),
        signs={
            "named-interface-missing": nccl.proof(
                "NCCL_SOCKET_IFNAME set",
                r"NCCL_SOCKET_IFNAME set (?:by environment )?to (?P<interface>[^\s]+?)\.?(?:\n(?s:.{0,2000}?)"
                r"(?:no socket interface found|no interface found|No IP interface found|No usable listening))",
                lines=12,
            ),
            "interface-missing": nccl.proof(  # lines that may be far apart, or from several processes
                _NO_INTERFACE, beside=("interface-set",)
            ),
            "oob-interface-missing": nccl.proof(
                "verify NCCL_OOB_NET_IFNAME", r"no device found (?:matching|after excluding) (?P<interface>[^\s,]+)"
            ),
            "peer-address-not-routed": nccl.sign(
                _CONNECT,
                rf"{_PEER.format(address=f'(?:{_OWN})')}[^\n]{{0,60}}?(?:failed|returned"
                rf"|exceeded)(?![^\n]*(?:, retrying| refused))",
            ),
            # this machine itself refuses the connection: no process listens on its interface
            "peer-address-of-own-machine": nccl.sign(
                _CONNECT, rf"{_PEER.format(address=_ONE_LINK)}[^\n]{{0,60}}?failed[^\n]*refused(?!, retrying)"
            ),
            "address-not-assignable": nccl.hint(
                (*_CONNECT, "Call to bind failed"),
                rf"(?:{_PEER.format(address='')}[^\n]*|Call to bind failed : )Cannot assign requested address",
            ),
        },
    ),
    "DDJ143": host_cause(
        name="duplicate-hostname",
        title="NCCL treats ranks of different nodes as one node: their hosts may share a name",
        finds="NCCL sees two ranks on one GPU, in a job with one rank on each node.",
        why="NCCL identifies a host by its name up to the first dot and by the kernel's boot id. Containers of one"
        " image, or cloned machines, may share both. NCCL then tries P2P and shared memory across hosts.",
        remedies=(
            remedy(
                "Set a different NCCL_HOSTID per host",
                settings=(setting("NCCL_HOSTID", "$SLURM_NODEID", "another value on each node"),),
            ),
            on_node("Set a different name on each host", "hostnamectl set-hostname NAME"),
        ),
        next_check="hostname; cat /proc/sys/kernel/random/boot_id on each node",
        references=("NCCL 2.5 to 2.30, src/misc/utils.cc (getHostHash)",),
        instead_of=("duplicate-gpu",),
        signs={"one-host-for-nccl": Sign("Duplicate GPU detected : rank", beside=("one-rank-a-node",))},
    ),
    "DDJ134": sick_host(
        name="net-plugin-load-failed",
        title="NCCL's network plug-in[ {plugin}] is unusable on {who}[: {reason}]",
        finds="An installed network plug-in of NCCL cannot be loaded or finds no device.",
        why="NCCL continues with its own InfiniBand or TCP transport, which is several times slower, or fails if"
        " NCCL_NET names the plug-in.",
        remedies=(
            on_node(
                "Install the plug-in's libraries on all nodes, in compatible versions",
                "fi_info -p efa",
                "ldd $(ldconfig -p | grep -o '/.*libnccl-net.*')",
            ),
            remedy(
                "Run without the plug-in (workaround)",
                settings=(setting("NCCL_NET_PLUGIN", "none", "NCCL's own transports serve"),),
                cost="TCP instead of the plug-in's network, several times slower",
            ),
        ),
        next_check="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET; ddp-doctor check nccl on that node",
        references=(_PLUGINS, "aws/aws-ofi-nccl, src/nccl_ofi_net.cpp"),
        signs={
            "no-net-plugin": nccl.proof("Failed to initialize any NET plugin"),
            "net-plugin-not-initialised": nccl.sign(
                "Failed to initialize NET plugin",
                r"Failed to initialize NET plugin (?!IB\b|Socket\b)(?P<plugin>[^\n]{1,60})",
            ),
            # The plug-in exists, but a library that it needs does not. A missing libnccl-net.so itself is normal: there
            # is no plug-in.
            "net-plugin-lacks-library": nccl.sign(
                ("cannot open shared object file", "undefined symbol"),
                r"NET/Plugin[^\n]*?(?P<reason>(?:lib(?!nccl-net)[\w.+-]{1,100}: cannot open shared object file"
                r"|undefined symbol: \w+))",
            ),
            "ofi-finds-nothing": nccl.sign(
                "NET/OFI",
                r"(?<!INFO )NET/OFI (?P<reason>[^\n]{0,200}?(?:[Cc]ould(?:n't| not) (?:find|open|set)|[Nn]o eligible"
                r"|[Uu]nable to find|fi_getinfo\(\) call failed|[Cc]reating new endpoint[^\n]{0,60} failed"
                r"|[Ii]nitialization failed)[^\n]{0,80})",
            ),
            "named-network-missing": nccl.proof(  # a name in NCCL_NET, up to NCCL 2.26
                "Error: network ", r"Error: network (?P<plugin>\S[^\n]{0,60}?) not found"
            ),
            "net-plugin-of-cloud": nccl.hint(
                ("NET/GPUDirectTCPX", "NET/FasTrak"), r"NET/(?P<plugin>GPUDirectTCPX|FasTrak)\W{1,3}[Ff]ailed"
            ),
        },
    ),
    "DDJ135": host_cause(
        name="net-plugin-version-mismatch",
        title="NCCL's network plug-in on {who} is incompatible with this NCCL or the driver",
        finds="NCCL finds a network plug-in but does not support the version of its interface.",
        why="A plug-in and an NCCL each support a few versions of the interface. Plug-ins of cloud providers also"
        " require certain drivers.",
        remedies=(on_node("Install plug-in, NCCL and driver from one set of the provider"),),
        next_check="NCCL_DEBUG=INFO shows NET/Plugin lines and the plug-in's version",
        references=(_PLUGINS,),
        signs={
            "net-plugin-interface": nccl.sign(
                ("symbols v4 and lower are not supported", "External network plugin"),
                r"Failed to find ncclNetPlugin symbol \(>= v\d+\)"
                r"|External network plugin (?P<plugin>\S+) is unsupported",
            ),
            "net-plugin-device-version": nccl.proof("plugin has incompatible version"),
        },
    ),
    "DDJ136": sick_host(
        name="net-transport-mismatch",
        title="Nodes use different networks for NCCL[: {who} finds another type at {peer}]",
        finds="The two ends of a connection use different transports or different kinds of RDMA links.",
        why="Each node chooses its own transport. A plug-in that fails to load on one node, or a port that is"
        " down, makes that node fall back to TCP, while the other nodes wait for RDMA.",
        remedies=(
            on_node("Repair the node whose choice differs", "grep -h 'Using network' *.log | sort | uniq -c"),
            remedy(
                "Set the network, so that a node without it fails immediately",
                settings=(setting("NCCL_NET", "IB", "no node falls back silently"),),
            ),
        ),
        next_check='NCCL_DEBUG=INFO shows "Using network" of every node',
        references=("NCCL 2.16 to 2.30, src/misc/socket.cc and src/transport/net_ib/connect.cc",),
        signs={
            "connection-of-other-kind": nccl.sign(
                ("socketFinalizeAccept", "Wrong socket type from"),
                r"(?:socketFinalizeAccept|Wrong socket type)(?: from (?P<peer>[^\s<:]+))?[^\n]{0,20}"
                r"(?:: wrong (?:socket )?type| \(peer \d+ != expected \d)",
            ),
            "link-layers-differ": nccl.proof(
                ("is incompatible with the local", "connect incompatible devices", "with different link_layer"),
                r"NET/IB : (?:Remote (?P<link>(?!UNSPECIFIED)\S+) device is incompatible"
                r"|Attempted to connect incompatible|Can't (?:merge|connect) net devices)",
            ),
        },
    ),
}
