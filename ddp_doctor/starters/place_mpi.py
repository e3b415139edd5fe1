"""What Open MPI tells its processes about nodes: how many, and which host can be the head.

Open MPI numbers ranks, not nodes, and names no host but that of mpirun::

    OMPI_MCA_orte_num_nodes=2                    nodes with ranks (4.x)
    OMPI_MCA_ess_base_num_procs=3                daemons, on processes of remote daemons only (4.x)
    OMPI_MCA_orte_hnp_uri=1506410496.0;tcp://10.88.0.3:52771          mpirun; addresses with commas
    OMPI_MCA_orte_local_daemon_uri=1506410496.1;tcp://10.88.0.1:35239     daemon 1 started this process
    OMPI_MCA_orte_node_regex=fan[1:3,1-2]@0(3)   the daemons' hosts, mpirun's first (remote daemons only)
    PMIX_NAMESPACE=prterun-fan3-11529@1          mpirun's host and pid (5.x)
    PMIX_SERVER_URI2=prterun-fan3-11529@0.1;tcp4://127.0.0.1:50629    daemon 1 (5.x)

mpirun itself is daemon 0. Where it was typed on a host that gets no rank (a login node), rank 0 is
on daemon 1.
"""

import re
from collections.abc import Mapping

from ddp_doctor.parse.hostlist import expand_open_mpi
from ddp_doctor.starters.detect import number

_DAEMON = re.compile(r"[^;]*\.(\d{1,9});", re.ASCII)
_ADDRESSES = re.compile(r"[^;]*;tcp6?://([^;]*):\d+", re.ASCII)
_NAMESPACE = re.compile(r"prterun-(.+)-\d+@\d+", re.ASCII)
_NAME_IT = "say which host is the head: mpirun -x MASTER_ADDR=HOST ..., HOST being the one with rank 0"


def mpi_nnodes(env: Mapping[str, str]) -> int:
    """How many nodes have ranks; where Open MPI does not tell, as if all had as many as this one."""
    stated = number(env, "OMPI_MCA_orte_num_nodes", 0)
    here = max(number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", 1), 1)
    return stated or max(-(-number(env, "OMPI_COMM_WORLD_SIZE", 1) // here), 1)


def mpi_head(env: Mapping[str, str]) -> str:
    """The address or name of the host with rank 0, as every process finds it. Raises ValueError."""
    if "OMPI_MCA_orte_hnp_uri" not in env:
        return _head_of_5(env)
    daemons, nodes = number(env, "OMPI_MCA_ess_base_num_procs", 0), mpi_nnodes(env)
    if daemons > nodes:
        hosts = expand_open_mpi(env.get("OMPI_MCA_orte_node_regex", ""))
        return _checked(env, "OMPI_MCA_orte_local_daemon_uri", 1, hosts[1] if len(hosts) > 1 else None)
    return _checked(env, "OMPI_MCA_orte_local_daemon_uri", 0, _host_of_mpirun(env))


def _host_of_mpirun(env: Mapping[str, str]) -> str | None:
    """Its address where it has one; which of several the others reach is not for us to guess: its name."""
    found = _ADDRESSES.match(env["OMPI_MCA_orte_hnp_uri"])
    addresses = found[1].split(",") if found else []
    if len(addresses) == 1:
        return addresses[0].strip("[]")
    if "OMPI_MCA_orte_node_regex" in env:
        return expand_open_mpi(env["OMPI_MCA_orte_node_regex"])[0]
    return env.get("PMIX_HOSTNAME")


def _head_of_5(env: Mapping[str, str]) -> str:
    found = _NAMESPACE.fullmatch(env.get("PMIX_NAMESPACE", ""))
    return _checked(env, "PMIX_SERVER_URI2", 0, found[1] if found else None)


def _checked(env: Mapping[str, str], variable: str, expected: int, host: str | None) -> str:
    """``host``, unless it is unknown or rank 0, which runs here, shows that it is on another."""
    if host is None:
        raise ValueError(f"mpirun does not tell where rank 0 runs; {_NAME_IT}")
    daemon = _DAEMON.match(env.get(variable, ""))
    if env.get("OMPI_COMM_WORLD_RANK") == "0" and daemon is not None and int(daemon[1]) != expected:
        raise ValueError(f"mpirun was started on a host that does not run rank 0; {_NAME_IT}")
    return host
