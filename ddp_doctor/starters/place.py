"""The place of this process among the nodes, from its launcher's variables and the user's options.

Pure: the environment is an argument. Contradictions raise ValueError with one sentence that contains the fix. The
launchers' variables are as set by SLURM 22.05, Open MPI 4.1 and 5.0, torchrun 2.13 and Kubeflow's training operator.

Open MPI gives its processes the number of nodes and the possible head.

It numbers ranks, not nodes, and names only mpirun's host::

    OMPI_MCA_orte_num_nodes=2                    nodes with ranks (4.x)
    OMPI_MCA_ess_base_num_procs=3                daemons, on processes of remote daemons only (4.x)
    OMPI_MCA_orte_hnp_uri=1506410496.0;tcp://10.88.0.3:52771          mpirun; addresses with commas
    OMPI_MCA_orte_local_daemon_uri=1506410496.1;tcp://10.88.0.1:35239     daemon 1 started this process
    OMPI_MCA_orte_node_regex=fan[1:3,1-2]@0(3)   the daemons' hosts, mpirun's first (remote daemons only)
    PMIX_NAMESPACE=prterun-fan3-11529@1          mpirun's host and pid (5.x)
    PMIX_SERVER_URI2=prterun-fan3-11529@0.1;tcp4://127.0.0.1:50629    daemon 1 (5.x)

mpirun itself is daemon 0. If it was started on a host without ranks (a login node), rank 0 is on daemon 1.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddp_doctor.parse.hostlist import expand, expand_open_mpi
from ddp_doctor.parse.options import MASTER_PORT, endpoint, nnodes
from ddp_doctor.starters.detect import HOSTS_VARIABLE, Launcher, OuterWorld, number

_DAEMON = re.compile(r"[^;]*\.(\d{1,9});", re.ASCII)
_ADDRESSES = re.compile(r"[^;]*;tcp6?://([^;]*):\d+", re.ASCII)
_NAMESPACE = re.compile(r"prterun-(.+)-\d+@\d+", re.ASCII)
_DAEMON_HOSTS = "OMPI_MCA_orte_node_regex"
_NAME_IT = "name the host with rank 0: mpirun -x MASTER_ADDR=HOST ..."


def mpi_nnodes(env: Mapping[str, str]) -> int:
    """Return how many nodes have ranks. If Open MPI does not report it, assume as many ranks on each node."""
    stated = number(env, "OMPI_MCA_orte_num_nodes", 0)
    here = max(number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", 1), 1)
    return stated or max(-(-number(env, "OMPI_COMM_WORLD_SIZE", 1) // here), 1)


def mpi_head(env: Mapping[str, str]) -> str:
    """Return the address or name of the host with rank 0, the same in every process. Raises ValueError."""
    if "OMPI_MCA_orte_hnp_uri" not in env:  # of Open MPI 5
        found = _NAMESPACE.fullmatch(env.get("PMIX_NAMESPACE", ""))
        return _checked(env, "PMIX_SERVER_URI2", 0, found[1] if found else None)
    daemons, nodes = number(env, "OMPI_MCA_ess_base_num_procs", 0), mpi_nnodes(env)
    if daemons > nodes:
        hosts = _hosts_of_daemons(env)
        return _checked(env, "OMPI_MCA_orte_local_daemon_uri", 1, hosts[1] if len(hosts) > 1 else None)
    # Use mpirun's address if it has one. With several addresses it is unknown which one is reachable, so use its name.
    found, host = _ADDRESSES.match(env["OMPI_MCA_orte_hnp_uri"]), env.get("PMIX_HOSTNAME")
    addresses = found[1].split(",") if found else []
    if len(addresses) == 1:
        host = addresses[0].strip("[]")
    elif _DAEMON_HOSTS in env:
        host = _hosts_of_daemons(env)[0]
    return _checked(env, "OMPI_MCA_orte_local_daemon_uri", 0, host)


def _hosts_of_daemons(env: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return expand_open_mpi(env.get(_DAEMON_HOSTS, ""))
    except ValueError as error:
        raise ValueError(f"cannot read {_DAEMON_HOSTS}: {error}; {_NAME_IT}") from None


def _checked(env: Mapping[str, str], variable: str, expected: int, host: str | None) -> str:
    """Return ``host``. Raises ValueError if it is unknown or if rank 0, on this node, shows another host."""
    if host is None:
        raise ValueError(f"mpirun does not report which host runs rank 0; {_NAME_IT}")
    daemon = _DAEMON.match(env.get(variable, ""))
    if env.get("OMPI_COMM_WORLD_RANK") == "0" and daemon is not None and int(daemon[1]) != expected:
        raise ValueError(f"mpirun was started on a host that does not run rank 0; {_NAME_IT}")
    return host


#: A port computed from a job's number: below the ephemeral ones (32768 on), and not torchrun's own.
_FIRST_PORT, _PORTS = 10_000, 19_000


class NotNeeded(Exception):
    """This node is not among the requested ones; the message is one sentence."""


@dataclass(frozen=True)
class Place:
    """A node of several nodes."""

    nnodes: int
    node_rank: int | None  # None: node ranks by order of arrival
    order: int | None  # sorts the arrivals if the launcher numbers only ranks
    endpoint: tuple[str, int] | None  # None: this host is the head and prints the command for the others
    expected_hosts: tuple[str, ...]  # by node rank, if known
    launcher: Launcher
    is_started_by_us: bool  # one command started all nodes: only the head writes files and shows a report

    @property
    def is_head(self) -> bool | None:
        """True if this node holds the endpoint, or None if only the endpoint's address shows it."""
        if self.endpoint is None:
            return True
        if self.node_rank is not None:
            return self.node_rank == 0
        return None if self.order is None else self.order == 0


@dataclass(frozen=True)
class Asked:
    """torchrun's options, typed or from PET_* variables, and hosts; empty or None if not given."""

    nnodes: str = ""
    node_rank: int | None = None
    rdzv_endpoint: str = ""
    master_addr: str = ""
    master_port: int | None = None
    hosts: tuple[str, ...] = ()  # HOST or USER@HOST, by node rank

    def typed(self, env: Mapping[str, str]) -> "Asked":
        """Return the options without values of torchrun's own PET_* variables and without the port of its store."""
        if self.named and str(self.named[1]) == env.get("MASTER_PORT"):
            return replace(self, rdzv_endpoint="", master_addr="", master_port=None).typed(env)
        own = {name: value for name, value in vars(self).items() if env.get(f"PET_{name.upper()}") != str(value)}
        return Asked(**{**own, "hosts": ()})

    @property
    def named(self) -> tuple[str, int] | None:
        """The host and port that the options name; port 0 is any. Raises ValueError."""
        if self.rdzv_endpoint:
            return endpoint(self.rdzv_endpoint)
        if self.master_addr:
            return self.master_addr, MASTER_PORT if self.master_port is None else self.master_port
        return None

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """The rendezvous endpoint, or None if unset. Raises ValueError if malformed."""
        if self.named is None:
            if self.master_port is not None:
                raise ValueError("--master-port requires --master-addr HOST with the host of node rank 0")
            return None
        host, port = self.named
        if not 1 <= port <= 65535:
            raise ValueError(
                f"invalid port {port}: a run on several nodes requires a port from 1 to 65535, the same on all nodes"
            )
        return host, port


@dataclass(frozen=True)
class Allocation:
    """A SLURM allocation where the command was typed once."""

    job_id: str
    hosts: tuple[str, ...]
    is_inside: bool  # this host is one of them; a login node is not


def place(asked: Asked, env: Mapping[str, str], outer: OuterWorld | None) -> Place:
    """Return the place of this process. Raises ValueError, and NotNeeded if its node does not take part."""
    if outer is not None and outer.launcher == "torchrun":
        return _under_torchrun(asked.typed(env), env)
    if outer is not None and outer.launcher == "mpi":
        return _under_mpi(asked, env)
    if outer is not None and outer.launcher == "slurm":
        return _in_slurm_step(asked, env)
    return _by_options(_as_operator_says(asked, env), env)


def endpoint_alone(asked: Asked, env: Mapping[str, str], outer: OuterWorld | None) -> tuple[str, int] | None:
    """Return the endpoint of a single-node job from its options or environment, or None if they do not set one.

    torchrun's ranks meet in its own store. Raises ValueError.
    """
    if asked.named or asked.master_port is not None:
        return asked.named or replace(asked, master_addr="127.0.0.1").named  # torchrun's own default
    port = number(env, "MASTER_PORT", 0)
    is_torchruns = outer is not None and outer.launcher == "torchrun"
    if is_torchruns or not env.get("MASTER_ADDR") or not 1 <= port <= 65535:
        return None
    return env["MASTER_ADDR"], port


def allocation(env: Mapping[str, str], outer: OuterWorld | None) -> Allocation | None:
    """Return the SLURM allocation of a batch script or salloc's shell, for a command that starts all nodes.

    None inside a step (srun already starts each task there) and under another launcher.
    """
    listed = env.get("SLURM_JOB_NODELIST", "")
    if outer is not None or HOSTS_VARIABLE in env or not env.get("SLURM_JOB_ID", "").isdecimal() or not listed:
        return None
    hosts = expand(listed)
    return Allocation(env["SLURM_JOB_ID"], hosts, env.get("SLURMD_NODENAME") in hosts)


# --- by launcher ----------------------------------------------------------------------------------


def _under_torchrun(asked: Asked, env: Mapping[str, str]) -> Place:
    """Return the place under torchrun. Its own store holds MASTER_PORT, so another port is computed for all nodes."""
    size = _nodes_taking_part(asked, number(env, "GROUP_WORLD_SIZE", 1), "torchrun")
    node_rank = _needed(number(env, "GROUP_RANK", 0), size)
    taken = env.get("MASTER_PORT", "")
    port = _port_of_launch(f"{taken}/{env.get('TORCHELASTIC_RUN_ID')}/{env.get('TORCHELASTIC_RESTART_COUNT')}")
    port += str(port) == taken
    where = asked.endpoint or (env.get("MASTER_ADDR", "127.0.0.1"), port)
    return Place(size, node_rank, None, where, (), "torchrun", is_started_by_us=False)


def _in_slurm_step(asked: Asked, env: Mapping[str, str]) -> Place:
    hosts = expand(env["SLURM_STEP_NODELIST"]) if env.get("SLURM_STEP_NODELIST") else ()
    size = _nodes_taking_part(asked, number(env, "SLURM_STEP_NUM_NODES", len(hosts) or 1), "srun")
    node_rank = _needed(number(env, "SLURM_NODEID", 0), size)
    port = _port_of_launch(f"{env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}")
    where = asked.endpoint or ((hosts[0], port) if hosts else None)
    if where is None and size > 1:
        raise ValueError(
            "SLURM_STEP_NODELIST is not set in this SLURM step; name the head node with --rdzv-endpoint HOST:PORT"
        )
    return Place(size, node_rank, None, where, hosts[:size], "slurm", is_started_by_us=True)


def _under_mpi(asked: Asked, env: Mapping[str, str]) -> Place:
    started = mpi_nnodes(env)
    size = _nodes_taking_part(asked, started, "mpirun")
    if size < started:
        raise ValueError(
            f"--nnodes asks for {_nodes(size)}, but mpirun started {started}; start {_nodes(size)} with mpirun, or"
            " omit --nnodes"
        )
    rank = number(env, "OMPI_COMM_WORLD_RANK", 0)
    where = asked.endpoint
    if where is None and env.get("MASTER_ADDR"):
        where = Asked(master_addr=env["MASTER_ADDR"], master_port=number(env, "MASTER_PORT", MASTER_PORT)).endpoint
    if where is None and size > 1:
        where = (mpi_head(env), _port_of_launch(env.get("PMIX_NAMESPACE", "")))
    return Place(size, None, rank, where, (), "mpi", is_started_by_us=True)


def _as_operator_says(asked: Asked, env: Mapping[str, str]) -> Asked:
    """Return the options of a pod of the older training operator: WORLD_SIZE counts pods, RANK numbers them."""
    head = env.get("MASTER_ADDR")
    port, pods, rank = (env.get(name, "") for name in ("MASTER_PORT", "WORLD_SIZE", "RANK"))
    is_pod = "KUBERNETES_SERVICE_HOST" in env and "LOCAL_RANK" not in env
    is_told = port.isdecimal() and pods.isdecimal() and rank.isdecimal()
    if not head or not is_pod or not is_told or asked.nnodes or asked.endpoint:
        return asked
    return Asked(nnodes=pods, node_rank=int(rank), master_addr=head, master_port=int(port))


def _by_options(asked: Asked, env: Mapping[str, str]) -> Place:
    size = nnodes(asked.nnodes)[1] if asked.nnodes else 1
    where = asked.endpoint if size > 1 else None
    if asked.node_rank is not None and not 0 <= asked.node_rank < size:
        ranks = "has only node rank 0" if size == 1 else f"have node ranks 0 to {size - 1}"
        raise ValueError(f"--node-rank {asked.node_rank} is out of range: {_nodes(size)} {ranks}")
    if size > 1 and asked.node_rank is not None and where is None:
        raise ValueError(
            "--node-rank requires --rdzv-endpoint HOST:PORT with the head node's address; use the same endpoint on all"
            " hosts"
        )
    hosts = tuple(filter(None, env.get(HOSTS_VARIABLE, "").split(",")))
    launcher: Launcher = "kubernetes" if "KUBERNETES_SERVICE_HOST" in env else "plain"
    if hosts:
        return Place(size, asked.node_rank, None, where, hosts, "ssh", is_started_by_us=True)
    if launcher == "kubernetes" and where is not None:
        hosts = _pods(where[0], size)
    return Place(size, asked.node_rank, None, where, hosts, launcher, is_started_by_us=False)


# --- parts ----------------------------------------------------------------------------------------


def _pods(head: str, size: int) -> tuple[str, ...]:
    """Return the pods of an operator's job by their numbers: ``job-master-0, job-worker-0`` or ``job-0, job-1``."""
    name, dot, domain = head.partition(".")
    found = re.fullmatch(r"(.+)-0", name)
    if found is None:
        return ()
    if found[1].endswith("-master"):
        job = found[1].removesuffix("-master")
        return (head, *(f"{job}-worker-{number}{dot}{domain}" for number in range(size - 1)))
    return tuple(f"{found[1]}-{number}{dot}{domain}" for number in range(size))


def _nodes_taking_part(asked: Asked, started: int, launcher: str) -> int:
    """Return how many of the nodes that a launcher started take part: all, or the number requested."""
    if not asked.nnodes:
        return started
    least, most = nnodes(asked.nnodes)
    if least > started:
        raise ValueError(
            f"--nnodes asks for {_nodes(least)}, but {launcher} started {_nodes(started)}; start {_nodes(least)} with"
            f" {launcher}, or omit --nnodes"
        )
    return min(most, started)


def _needed(node_rank: int, size: int) -> int:
    if node_rank >= size:
        first = "node" if size == 1 else f"{size} nodes"
        raise NotNeeded(f"node rank {node_rank} is not needed: --nnodes uses only the first {first}")
    return node_rank


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _port_of_launch(key: str) -> int:
    """Return the same port for the same launch on every node; unlikely the same for another launch."""
    return _FIRST_PORT + zlib.crc32(key.encode()) % _PORTS
