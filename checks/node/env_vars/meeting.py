"""DD127, DD129, DD131: the nodes of a launch do not connect, or have the same node rank.

Source: torch 2.13 torch/distributed/run.py (config_from_args, get_rdzv_endpoint, run) and
torch/distributed/elastic/rendezvous (static_tcp_rendezvous.py, c10d_rendezvous_backend.py). With the default backend
static, node rank 0 hosts the store and each node must have its own rank; with c10d the node that has the
endpoint's name hosts it, and node ranks are ignored.
"""

import re
from collections.abc import Iterable, Iterator

from ddp_doctor.checks.node.env_vars.in_force import setting_draft
from ddp_doctor.checks.node.env_vars.launches import (
    FIRST,
    WAIT,
    backend,
    counted_nodes,
    draft,
    first_host,
    if_several,
    is_address,
    launches_of_several,
    severity_of,
    started_by,
    starts_once,
    starts_several,
    torchruns,
)
from ddp_doctor.facts.node.env_vars import Argument, Launch, SettingText
from ddp_doctor.knowledge.network.addresses import is_own_host
from ddp_doctor.knowledge.network.interface_choice import GLOO_IFNAME, NCCL_IFNAME
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import in_job_script, unset
from ddp_doctor.settings.wording import shown

#: Interfaces that do not lead to other hosts. NCCL treats names as prefixes, or as exact names with =.
_LOOPBACK = ("lo", "=lo", "lo0")
_ONCE = "Expand it once, before the nodes start, and give all nodes the same value"
_IN_EACH_TASK = "Set them in each task: srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python ...'"
_ONE_DEVICE = "Set it in each task, or remove it: torch.cuda.set_device(LOCAL_RANK) chooses the GPU"
_ONE_GPU = "All tasks of a node then use one GPU, which NCCL refuses."
_OR_C10D = ", or use --rdzv-backend=c10d, which needs no node rank"
_ON_EACH = {
    "pods": f"Give each pod its own node rank, for example $JOB_COMPLETION_INDEX of an Indexed Job{_OR_C10D}",
    "slurm": "Expand the node rank on each node: srun bash -c 'torchrun ... --node-rank=$SLURM_NODEID ...'" + _OR_C10D,
    "hosts": f"Give each host its own node rank ($OMPI_COMM_WORLD_RANK in a shell, or a loop counter){_OR_C10D}",
}
_BRIDGE = "docs.docker.com/engine/network/drivers/bridge: containers on a bridge are on one host"
#: The index of a pod in its name, POD-1.SERVICE; a name that SVC.NAMESPACE.svc begins with is a service.
_POD = re.compile(r"[\w-]+-(\d{1,6})\.(?!default\b)[\w-]+(?!\.svc)(?:\.[\w-]+)*")
_INDEX = re.compile(r"\$[{(]?(?:JOB_COMPLETION_INDEX|LWS_WORKER_INDEX|(?:HOSTNAME|POD_NAME)##\*-)[)}]?")
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


@rule("DD127", "loopback-between-nodes", Consequence.FAILS, SettingText)
def loopback_between_nodes(recording: Recording) -> Iterator[Draft]:
    """The ranks of several nodes use the loopback interface, or each node reaches only itself.

    Finds: A rendezvous endpoint, --master-addr or MASTER_ADDR that is localhost, that each node expands for itself
        ($(hostname) inside `bash -c '...'`), or that is missing, which means localhost; NCCL_SOCKET_IFNAME or
        GLOO_SOCKET_IFNAME set to lo; docker run or podman run without --network. A warning if it is uncertain:
        localhost as a default or after ||, and `hostname -i` or `hostname -I`, which print 127.0.1.1 or several
        addresses on many hosts. Not reported if there may be only one node (--nodes=1-4), if torchrun runs on one
        node only, or if the value depends on a branch or is overwritten before the ranks start.
    Why: Each node then looks for the others on itself: the ranks hang in init_process_group, or their connections
        are refused. With NCCL_SOCKET_IFNAME, init_process_group or the first collective fails.
    Remedy: Unset the interface, or name one that reaches the other nodes; give the first node's name as the
        address.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    text = recording.first(SettingText)
    drafts = list(_of_job(text)) if text is not None and all(map(starts_once, text.launches)) else []
    for of_text, launch, nodes in launches_of_several(recording):
        drafts += _of_interfaces(of_text, launch, nodes)
        drafts += _of_endpoint(of_text, launch, nodes)
        drafts += _of_container(launch, nodes)
    for launch in text.launches if text is not None else ():
        drafts += _of_deepspeed(launch)
    yield from _each_once(drafts)


def _each_once(drafts: Iterable[Draft]) -> Iterator[Draft]:
    """Yield the first draft with each title: two branches or templates may have the same line."""
    yield from {draft.title: draft for draft in drafts}.values()


def _of_job(text: SettingText) -> Iterator[Draft]:
    """Yield the findings about a script whose way to start ranks is unknown."""
    nodes = text.job.nodes if text.job else None
    if nodes is None or nodes[0] < 2:
        return
    possible = text.possible()
    for name, written in text.in_force().items():
        is_sure = written.depends_on is None and len({each.value for each in possible.get(name, ())}) == 1
        if written.value and is_sure and _is_own_host(name, written.value):
            yield _lost(text, name, written.value, nodes[0], None)


def _is_own_host(name: str, value: str) -> bool:
    if name == "MASTER_ADDR":
        return is_own_host(value.strip())
    return name in (NCCL_IFNAME, GLOO_IFNAME) and value.strip() in _LOOPBACK


def _of_interfaces(text: SettingText, launch: Launch, nodes: int) -> Iterator[Draft]:
    for name, value in launch.environment.items():
        is_sure = value.kind == "literal" and not value.unless
        if is_sure and _is_own_host(name, value.text) and not (name == "MASTER_ADDR" and launch.starts != "python"):
            yield _lost(text, name, value.text, nodes, launch)


def _of_container(launch: Launch, nodes: int) -> Iterator[Draft]:
    if launch.container:
        yield draft(
            launch,
            f"Other nodes cannot reach the container: {launch.container} run creates a separate network for it",
            f"{counted_nodes(nodes)}, and {launch.container} run without --network",
            in_job_script(f"Add --network=host to {launch.container} run"),
            detail="Ranks listen on ports that torch and NCCL choose, so publishing one port with -p is not enough.",
            severity=None if nodes else Severity.WARNING,
            source=_BRIDGE,
        )


def _of_deepspeed(launch: Launch) -> Iterator[Draft]:
    """Yield the finding about DeepSpeed's launcher, which gives its --master_addr to all hosts (launcher/runner.py)."""
    host, number = (launch.arguments.get(name) for name in ("host", "--num-nodes"))
    counted = int(number.text) if number is not None and number.text.isdecimal() else 0
    nodes = counted or (len(launch.host_file.hosts) if launch.host_file and "--include" not in launch.arguments else 0)
    if launch.starts == "deepspeed" and nodes > 1 and host is not None and is_own_host(host.text):
        yield draft(
            launch,
            f"--master_addr={host.text} reaches no other node, but the job has {nodes} nodes",
            "DeepSpeed gives it to the launcher on each node",
            in_job_script("Remove --master_addr: DeepSpeed then takes an address of the first host"),
            detail="Each rank looks for the other ranks on its own node, so init_process_group() fails or hangs.",
            source="deepspeed/launcher/runner.py",
        )


def _lost(text: SettingText, name: str, value: str, nodes: int, launch: Launch | None) -> Draft:
    lines = [each.line for each in text.written if (each.name, each.value) == (name, value)]
    where = f"{launch.place} starts ranks" if launch else "the lines for SLURM ask for them"
    fails = "or the first collective fails" if name == NCCL_IFNAME else "fails or hangs"
    return setting_draft(
        [name],
        f"{shown(name, value)} reaches no other node, but the job has {nodes} nodes",
        f"{shown(name, value)}{f' in line {lines[-1]}' if lines else ''}; {nodes} nodes: {where}",
        "a loopback interface reaches only its own host",
        in_job_script(FIRST["slurm"] if launch is None else first_host(text, launch))
        if name == "MASTER_ADDR"
        else unset({name: value}, "it reaches no other node"),
        detail=f"Each rank looks for the other ranks on its own node, so init_process_group() {fails}.",
    )


def _address(launch: Launch) -> tuple[str, Argument | None]:
    """Return the name of the address and its value; None for ranks without torchrun if the script sets none."""
    if launch.starts == "python":
        return "MASTER_ADDR", launch.environment.get("MASTER_ADDR")
    host = launch.arguments.get("host")
    port = launch.arguments.get("port")
    return f"rendezvous endpoint {host.text if host else ''}{f':{port.text}' if port else ''}", host


def _of_endpoint(text: SettingText, launch: Launch, nodes: int) -> Iterator[Draft]:
    if launch.starts not in ("torchrun", "accelerate", "python") or "--standalone" in launch.arguments:
        return
    name, host = _address(launch)
    if host is None:
        if torchruns(launch) and backend(launch) in ("static", "c10d"):
            yield _no_endpoint(text, launch, nodes)
        return
    remedy = in_job_script(first_host(text, launch))
    own = "Each rank looks for the other ranks on its own node, so init_process_group() fails or hangs."
    if host.kind == "literal" and not is_address(host.text):
        title = f"{name} is not an address; expected a host name or an IP address"
        yield draft(launch, title, "torch looks it up unchanged", remedy)
    elif host.kind == "literal" and is_own_host(host.text):
        given = f"argument {host.unless} is given" if host.unless.isdecimal() else f"{host.unless} is set"
        unless = f" unless {given}" if host.unless else ""
        title = f"{name} reaches no other node, but the job has {counted_nodes(nodes)}{if_several(nodes)}{unless}"
        if launch.starts != "python":
            severity = Severity.WARNING if host.unless or not nodes else None
            yield draft(launch, title, f"the nodes meet at {host.text}", remedy, detail=own, severity=severity)
    elif host.kind == "each" and host.means in ("own-name", "own-address", "own-addresses"):
        title = f"{name} is each node's own address: {host.text} expands on each of {counted_nodes(nodes)}"
        severity = severity_of(launch, nodes)
        yield draft(launch, title, "each node waits for the others at itself", remedy, detail=own, severity=severity)
    elif host.means in ("own-address", "own-addresses"):
        what = "may be 127.0.1.1 or" if host.means == "own-address" else "is a list of"
        title = f"The rendezvous address {host.text} {what} several addresses"
        why = "a loopback address reaches no other node, and several addresses are not an endpoint"
        yield draft(launch, title, why, remedy, detail="", severity=Severity.WARNING)
    elif is_own_host(host.fallback):
        but = f"which reaches no other node, but the job has {counted_nodes(nodes)}"
        title = f"{name} falls back to {host.fallback}, {but}"
        why = f"after ||: {host.fallback}"
        detail = "If the command in front of || fails, as scontrol does in most containers, each node meets itself."
        remedy = in_job_script(f"Remove the fallback. {first_host(text, launch)}")
        yield draft(launch, title, why, remedy, detail=detail, severity=Severity.WARNING)


def _no_endpoint(text: SettingText, launch: Launch, nodes: int) -> Draft:
    if launch.starts == "accelerate":  # utils/launch.py: rdzv_endpoint = f"{main_process_ip}:{main_process_port}"
        return draft(
            launch,
            f"accelerate starts {counted_nodes(nodes)} without --main_process_ip, so they have no address to meet at",
            "unless accelerate's configuration file has main_process_ip",
            in_job_script(first_host(text, launch).replace("Give", "Give --main_process_ip")),
            detail="",
            severity=Severity.WARNING,
            source="accelerate/utils/launch.py",
        )
    is_static = backend(launch) == "static"
    ignored = "--master-addr" in launch.arguments and not is_static
    default = "127.0.0.1:29500" if is_static else "localhost:29400"
    because = "--rdzv-backend=c10d ignores --master-addr, so" if ignored else "No rendezvous endpoint is given, so"
    unless = " unless PET_MASTER_ADDR or PET_RDZV_ENDPOINT is set" if launch.by_hand else ""
    return draft(
        launch,
        f"{because} each of {counted_nodes(nodes)} meets only itself at {default}{if_several(nodes)}{unless}",
        f"{counted_nodes(nodes)}; no {'--master-addr or ' if is_static else ''}--rdzv-endpoint",
        in_job_script(first_host(text, launch).replace("Give", "Give --rdzv-endpoint")),
        detail="Each rank looks for the other ranks on its own node, so init_process_group() fails or hangs.",
        severity=severity_of(launch, nodes),
    )


@rule("DD129", "rendezvous-differs-between-nodes", Consequence.FAILS, SettingText)
def rendezvous_differs_between_nodes(recording: Recording) -> Iterator[Draft]:
    """The nodes of a launch use different rendezvous endpoints, or one on the wrong host.

    Finds: A port or rendezvous ID that each node draws at random or computes from its own number ($RANDOM or
        $((PORT + SLURM_NODEID)) inside `bash -c '...'`); an address of the last node or of the submit host,
        although the node with rank 0 must have it, of a host that is not in --nodelist, or of a pod whose index is
        not 0. Not reported if the value is expanded once, before the nodes start.
    Why: The nodes wait for each other at different places until the rendezvous times out.
    Remedy: Expand the port and the ID once, in the script that starts the nodes; give the first node's name.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    if text := recording.first(SettingText):
        yield from _of_lines_that_differ(text)
    for text, launch, nodes in launches_of_several(recording):
        if "--standalone" in launch.arguments:
            continue
        by_env = launch.starts == "python"
        port = launch.environment.get("MASTER_PORT") if by_env else launch.arguments.get("port")
        for name, value in (("MASTER_PORT" if by_env else "port", port), ("ID", launch.arguments.get("--rdzv-id"))):
            if value is not None and value.kind in ("random", "each"):
                who = "rank" if by_env else "node"
                drawn = "draws its own" if value.kind == "random" else "has another"
                title = f"Each {who} {drawn} {name if by_env else f'rendezvous {name}'}: {value.text}"
                why = f"expanded on each of {counted_nodes(nodes)}"
                severity = None if nodes else Severity.WARNING
                yield draft(launch, title, why, in_job_script(_ONCE), name=name if by_env else "", severity=severity)
        host = _address(launch)[1]
        if host is not None and (
            host.means == "submit-host" or (host.means == "last-host" and (by_env or backend(launch) == "static"))
        ):
            where = "the host that submitted the job" if host.means == "submit-host" else "the last node"
            title = f"The rendezvous address {host.text} is {where}, not the first node of the job"
            fix = in_job_script(first_host(text, launch))
            yield draft(launch, title, "node rank 0 listens, on the first node", fix)
        if host is not None and launch.program == "pods" and not by_env and backend(launch) == "static":
            yield from _of_another_pod(launch, host)
        hosts = text.job.hosts if text.job and launch.program == "srun" and launch.nodes is None else ()
        if host is not None and host.kind == "literal" and not host.unless and len(hosts) >= nodes > 0:
            name = host.text.partition(".")[0]
            is_first = name == hosts[0] or (name in hosts and not by_env and backend(launch) == "c10d")
            if not is_first and _stem(name) in map(_stem, hosts):  # other names may be aliases
                where = "another node of the job, not the first one" if name in hosts else "not a node of the job"
                why = f"--nodelist: {', '.join(hosts[:8])}"
                yield draft(
                    launch, f"The rendezvous address {name} is {where}", why, in_job_script(first_host(text, launch))
                )


def _of_another_pod(launch: Launch, host: Argument) -> Iterator[Draft]:
    """Yield the finding about the address of a pod whose index, which is its node rank, is not 0."""
    rank, name = launch.arguments.get("--node-rank"), _POD.fullmatch(host.text)
    if host.kind == "literal" and rank is not None and _INDEX.fullmatch(rank.text) and name and int(name[1]):
        yield draft(
            launch,
            f"The rendezvous address {host.text} is pod {name[1]}, but pod 0 has node rank 0",
            f"--node-rank={rank.text}; node rank 0 listens",
            in_job_script("Give the address of pod 0"),
            severity=Severity.WARNING,
        )


def _of_lines_that_differ(text: SettingText) -> Iterator[Draft]:
    """Yield the findings about commands for the nodes of one job, each with its node rank, that do not meet."""
    first = next(filter(_is_for_one_node, text.launches), None)
    if first is None:
        return
    for other in filter(_is_for_one_node, text.launches):
        given = first.arguments, other.arguments
        ranks, hosts, ports = ([each[name].text for each in given] for name in ("--node-rank", "host", "port"))
        if ranks[0] == ranks[1] or other.agents != first.agents or other.starts != first.starts:
            continue
        are_alike = _IPV4.fullmatch(hosts[0]) is not None and _IPV4.fullmatch(hosts[1]) is not None
        is_at_itself = any(is_own_host(host) for host, rank in zip(hosts, ranks, strict=True) if rank == "0")
        for name, values in (("address", hosts if are_alike and not is_at_itself else ["", ""]), ("port", ports)):
            if values[0] != values[1]:
                title = f"Node {ranks[0]} gets the {name} {values[0]}, and node {ranks[1]} gets {values[1]}"
                why = f"{first.place} has {values[0]}; all nodes need the {name} of node 0"
                fix = in_job_script(f"Give all nodes the {name} of node 0")
                yield draft(other, title, why, fix)
                return


def _is_for_one_node(launch: Launch) -> bool:
    """Return True for a command with a node rank, an address and a port, written for one of several nodes."""
    names = ("--node-rank", "host", "port")
    given = [launch.arguments[name] for name in names if name in launch.arguments]
    is_several = launch.agents is not None and launch.agents[0] > 1
    is_literal = len(given) == len(names) and all(each.kind == "literal" and "$" not in each.text for each in given)
    return is_several and is_literal and backend(launch) == "static" and launch.program in ("torchrun", "ssh")


def _stem(host: str) -> str:
    return re.sub(r"\d+", "0", host)


@rule("DD131", "node-rank-same-on-all-nodes", Consequence.FAILS, SettingText)
def node_rank_same_on_all_nodes(recording: Recording) -> Iterator[Draft]:
    """The nodes of a static rendezvous all have the same node rank.

    Finds: torchrun on several nodes with the default backend static and no --node-rank, a number, or a variable
        that the shell in front of srun expands: `srun torchrun --node-rank=$SLURM_NODEID` is --node-rank=0 on all
        nodes; SLURM_LOCALID; `$RANK` in a command of a pod without a shell. A warning for RANK of ranks that srun
        starts without torchrun, and for torch.distributed.launch in a PyTorchJob, whose operator sets the rank only
        in newer versions. Not reported with --rdzv-backend=c10d, or if another command may start the other nodes.
    Why: All nodes claim rank 0 and wait for the missing ranks until the rendezvous times out.
    Remedy: Expand the rank on each node, or use --rdzv-backend=c10d with --rdzv-endpoint.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    yield from _each_once([*_of_node_ranks(recording), *_expanded_once(recording)])


def _of_node_ranks(recording: Recording) -> Iterator[Draft]:
    fixed: dict[str, list[Launch]] = {}
    for text, launch, nodes in launches_of_several(recording):
        if launch.starts == "python":
            rank, option = launch.environment.get("RANK"), "RANK"
            if rank is None or not starts_several(launch):
                continue
        elif torchruns(launch) and backend(launch) == "static" and "--standalone" not in launch.arguments:
            rank, option = launch.arguments.get("--node-rank"), "--node-rank"
            if rank is None and ("host" not in launch.arguments or launch.by_hand):
                continue  # without an endpoint they cannot connect anyway
        else:
            continue
        if rank is not None and rank.kind == "literal" and launch.pods == 1:
            fixed.setdefault(rank.text, []).append(launch)
        if rank is not None and rank.text == "$PET_NODE_RANK" and launch.arguments.get("-m"):
            yield _of_older_operator(launch)
        is_known_to_start_all = starts_several(launch) and not _starts_another_rank(text, launch)
        fault = _fault_of_rank(launch, rank, option) if is_known_to_start_all else ""
        if fault:
            by_env = option == "RANK"  # the script may not read it
            severity, name = Severity.WARNING if by_env or not nodes else None, option if by_env else ""
            why = f"{counted_nodes(nodes)}, each with the same {option}"
            by_task = by_env and launch.program == "srun"
            fix = in_job_script(_IN_EACH_TASK if by_task else _ON_EACH[started_by(text, launch)])
            yield draft(launch, fault, why, fix, name=name, severity=severity)
    for rank_text, launches in fixed.items():
        if len(launches) > 1:
            title = f"Two templates of the job have --node-rank={rank_text}"
            yield draft(launches[1], title, f"{launches[0].place} has it too", in_job_script(_ON_EACH["pods"]))


def _expanded_once(recording: Recording) -> Iterator[Draft]:
    """Yield the findings on variables of one task that are set before the tasks start, on one node or on several."""
    text = recording.first(SettingText)
    for launch in text.launches if text else ():
        if launch.program not in ("srun", "mpirun") or launch.tasks == 1 or launch.cut:
            continue
        # torchrun gives its ranks their own RANK and LOCAL_RANK.
        names = ("RANK", "LOCAL_RANK") if launch.starts == "python" else ()
        if not sets_devices(text, launch):
            names = (*names, "CUDA_VISIBLE_DEVICES")
        values = {name: launch.environment[name] for name in names if name in launch.environment}
        once = {name: value.text for name, value in values.items() if value.kind == "once"}
        if once:
            starter, (first, text_of_first) = launch.by, next(iter(once.items()))
            yield draft(
                launch,
                f"Every task has the same {' and '.join(once)}: {text_of_first} expands once, before {starter} starts"
                " the tasks",
                f"set before {starter}: {', '.join(f'{name}={value}' for name, value in once.items())}",
                in_job_script(
                    _ONE_DEVICE
                    if first == "CUDA_VISIBLE_DEVICES"
                    else _IN_EACH_TASK
                    if launch.program == "srun"
                    else _ONCE
                ),
                detail=WAIT.replace("nodes", "tasks") if first == "RANK" else _ONE_GPU,
                severity=Severity.WARNING,
                name=first,
            )


def sets_devices(text: SettingText | None, launch: Launch) -> bool:
    """Return True if SLURM sets CUDA_VISIBLE_DEVICES in each task, or the only task of a node has all GPUs."""
    job = text.job if text else None
    asked = [each for each in (launch, job) if each is not None]
    is_alone = any(each.tasks_per_node == 1 for each in asked)
    return is_alone or any(each.gpus or each.gpus_per_node or each.gpus_per_task for each in asked)


def _of_older_operator(launch: Launch) -> Draft:
    """Yield the warning about torch.distributed.launch in a PyTorchJob, which needs a newer operator."""
    return draft(
        launch,
        "torch.distributed.launch gets its --node-rank and --master-addr only from training-operator 1.7 or newer",
        "no --node-rank and no --master-addr; the operator sets PET_NODE_RANK and PET_MASTER_ADDR since v1.7.0",
        in_job_script("Add --node-rank=$RANK --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT"),
        detail="With an older operator, or a torch before 1.9, every pod takes node rank 0 and 127.0.0.1 and waits.",
        severity=Severity.WARNING,
    )


def _starts_another_rank(text: SettingText, launch: Launch) -> bool:
    """Return True if this is one of several branches of a loop over hosts, each with its own node rank."""
    own = launch.arguments.get("--node-rank")
    others = (each.arguments.get("--node-rank") for each in text.launches if each.program == "ssh")
    is_one = launch.program == "ssh" and own is not None and own.kind == "literal"
    return is_one and any(other is not None and other != own for other in others)


def _fault_of_rank(launch: Launch, rank: Argument | None, option: str) -> str:
    if rank is None:
        return "Every node has node rank 0: --node-rank is not given, and the default backend static needs it"
    if rank.kind == "literal" and re.match(r"\$\{?\w", rank.text):
        return f"{option}={rank.text} is not expanded, because no shell runs the command"
    if rank.kind == "once" and option != "RANK":  # see _expanded_once
        return f"Every node has the same {option}: {rank.text} expands once, before {launch.by} starts the nodes"
    if rank.means == "local-rank" and option == "--node-rank" and (launch.tasks_per_node or 1) == 1:
        return f"Every node has node rank 0: {rank.text} counts the tasks of one node"
    is_one_of_pods = launch.program == "pods" and launch.pods == 1
    if rank.kind in ("literal", "same") and not launch.by_hand and not rank.unless and not is_one_of_pods:
        return f"Every node has the same {option}: {rank.text}"
    return ""
