"""The pods of a manifest as the nodes of a job, and what their operators set; also launchers' configurations.

The variables that an operator sets, and which value takes precedence:

* PyTorchJob (kubeflow/training-operator v1.9.0, pkg/controller.v1/pytorch/envvar.go, setPodEnv): MASTER_ADDR,
  MASTER_PORT, WORLD_SIZE and RANK if there is a Master; since v1.7.0 (#1840) also PET_MASTER_ADDR,
  PET_MASTER_PORT, PET_NODE_RANK, PET_NNODES and PET_NPROC_PER_NODE (``auto`` by default); with elasticPolicy
  PET_RDZV_ENDPOINT and PET_RDZV_BACKEND. They are appended to the container's env. The last of two equal names
  counts, so the operator's value is used. torchrun's command line overrides all PET_*.
* TrainJob (kubeflow/trainer, pkg/runtime/framework/plugins/torch/torch.go, EnforceMLPolicy): PET_NNODES,
  PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT, and no variables for ``env://``.
* Job with completionMode Indexed, and a JobSet's: JOB_COMPLETION_INDEX, and none of torch (kubernetes-sigs/jobset).
* LeaderWorkerSet: LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp_doctor.facts.node.env_vars import Argument, ArgumentMeaning, Launch
from ddp_doctor.parse.yaml_text import Node, Scalar
from ddp_doctor.settings.launches import starts
from ddp_doctor.settings.launches.expansion import Frame
from ddp_doctor.settings.launches.reader import Reader
from ddp_doctor.settings.launches.running import Start
from ddp_doctor.settings.launches.shell_tree import Call
from ddp_doctor.settings.launches.values import Part

_OWN = "node"
_ONE = "same"
#: Names that an operator sets, with the kind of their values; a number is the job's own.
_BY_OPERATOR: dict[str, dict[str, str]] = {
    "PyTorchJob": {
        "MASTER_ADDR": "first", "MASTER_PORT": _ONE, "WORLD_SIZE": _ONE, "RANK": _OWN, "PET_NODE_RANK": _OWN,
        "PET_MASTER_ADDR": "first", "PET_MASTER_PORT": _ONE, "PET_NNODES": "count", "PET_NPROC_PER_NODE": "ranks",
    },
    "elastic PyTorchJob": {"PET_RDZV_ENDPOINT": "endpoint", "PET_RDZV_BACKEND": "c10d", "PET_NNODES": "count",
                           "PET_NPROC_PER_NODE": "ranks"},
    "PyTorchJob without Master": {"PET_NNODES": "count", "PET_NPROC_PER_NODE": "ranks"},
    "TrainJob": {"PET_NNODES": "count", "PET_NPROC_PER_NODE": "ranks", "PET_NODE_RANK": _OWN,
                 "PET_MASTER_ADDR": "first", "PET_MASTER_PORT": _ONE},
    "LeaderWorkerSet": {"LWS_LEADER_ADDRESS": "first", "LWS_GROUP_SIZE": "count", "LWS_WORKER_INDEX": _OWN},
    "Job": {"JOB_COMPLETION_INDEX": _OWN},
    "volcano": {"MASTER_ADDR": "first", "MASTER_PORT": _ONE, "WORLD_SIZE": _ONE, "RANK": _OWN},
}  # fmt: skip
#: Kinds without a distributed job: a single pod of this kind may be one of several.
_PLAIN = ("Job", "StatefulSet", "Deployment", "ReplicaSet", "Pod")
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
#: ``$(NAME)`` in a command, which Kubernetes replaces if the container has the name.
_REFERENCE = re.compile(r"\$\(([A-Za-z_]\w*)\)", re.ASCII)
#: accelerate's configuration (accelerate/commands/config/config_args.py).
_ACCELERATE = {
    "num_machines": "--nnodes", "machine_rank": "--node-rank", "main_process_ip": "host", "main_process_port": "port",
    "num_processes": "--num-processes", "rdzv_backend": "--rdzv-backend",
    "gpu_ids": "--gpu-ids",
}  # fmt: skip
_DEEPSPEED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
#: Fields that differ between the pods of a template; other labels and annotations come from the template.
_OF_POD = re.compile(r"(?:\.name|\.uid|IPs?|nodeName|(?:index|rank|pod-name)'?\]?)$")
#: Launchers of DeepSpeed that number the machines themselves (accelerate/utils/launch.py).
_NUMBERED_BY_LAUNCHER = ("pdsh", "openmpi", "mvapich", "mpich", "nossh", "slurm")
_MOST_DOCUMENTS = 200
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})", re.ASCII)
_OF_ENVSUBST = re.compile(r"\s*(?:- )?(?:image|name|namespace|replicas|numNodes|completions|.*gpu): *[\"']?\S*\$\{?\w")


@dataclass
class _Role:
    """The pods of one template."""

    count: int | None
    containers: list[dict[str, Node]]
    by_operator: dict[str, str] = field(default_factory=dict)
    ranks: str | None = None


class Manifest(Reader):
    """The launches in the documents of a manifest."""

    _is_template = False

    def read_documents(self, documents: Sequence[Node]) -> Launch | None:
        """Follow the commands of all containers; return the job of several pods if there is only one."""
        self._is_template = any(map(_OF_ENVSUBST.match, self.lines))
        jobs = [job for each in documents[:_MOST_DOCUMENTS] if (job := self._document(each)) is not None]
        return jobs[0] if len(jobs) == 1 else None

    def _document(self, document: Node) -> Launch | None:
        top = _map(document)
        if "num_machines" in top or set(top) & {*_DEEPSPEED, "zero_optimization"}:
            self._configuration(top)
            return None
        kind, spec = _text(top, "kind"), _map(top.get("spec"))
        if inner := list(_manifests_in(spec)):
            jobs = [job for each in inner if (job := self._document(each)) is not None]
            return jobs[0] if len(jobs) == 1 else None
        roles = list(_roles(kind, _text(top, "apiVersion"), spec))
        if kind == "MPIJob":
            workers = roles[1].count if len(roles) > 1 else None
            for container in roles[0].containers if roles else ():
                self._container(container, Frame(), None)
            return Launch(program="kubernetes", line=_line(top), nodes=(workers, workers) if workers else None)
        first = len(self.launches)
        all_pods = sum(each.count or 0 for each in roles)
        is_one = all_pods == 1 and kind in _PLAIN and "volcano" not in _text(top, "apiVersion")
        started = [role for role in roles if self._role(role, all_pods, is_one=is_one)]
        counts = [role.count for role in started if role.count]
        total = sum(counts)
        if not total or len(counts) < len(started):
            return None
        gpus = {found for role in started for each in role.containers if (found := _gpus(each))}
        gpus |= {found for found in (_gpus_in(_map(_map(spec.get("trainer")).get("resourcesPerNode"))),) if found}
        each = gpus.pop() if len(gpus) == 1 else None
        self.launches[first:] = [
            launch.model_copy(update={"nodes": (total, total)}) if launch.program == "pods" and not is_one else launch
            for launch in self.launches[first:]
        ]
        nodes = None if is_one else (total, total)
        return Launch(program="kubernetes", line=_line(top), nodes=nodes, gpus_per_node=each)

    def _role(self, role: _Role, total: int, *, is_one: bool) -> bool:
        """Return True if the containers of these pods start ranks."""
        before = self.added
        for container in role.containers:
            frame = Frame()
            for each in _list(container.get("env")):
                pair = _map(each)
                frame.variables[_text(pair, "name")] = self._env_value(pair, frame)
            for name, kind in role.by_operator.items():
                if value := self._of_operator(name, kind, role, total):
                    frame.variables[name] = value
            frame.exported |= frame.variables.keys()
            start = Start("pods", _line(container), 0, {"tasks_per_node": 1, "pods": role.count}, by_hand=is_one)
            self._container(container, frame, start if total > 1 or is_one or role.count is None else None)
        return self.added > before

    def _env_value(self, pair: dict[str, Node], frame: Frame) -> str:
        if "valueFrom" in pair:
            path = _text(_map(_map(pair["valueFrom"]).get("fieldRef")), "fieldPath")
            means: ArgumentMeaning = "own-name" if path.endswith(("IP", ".name", "nodeName")) else ""
            own = _OF_POD.search(path) is not None
            return self.values.token(Part("node" if own else "same", f"${_text(pair, 'name')}", means=means))
        return self._referring(_text(pair, "value"), frame)

    def _referring(self, text: str, frame: Frame) -> str:
        return _REFERENCE.sub(lambda found: frame.variables.get(found[1], found[0]), text)

    def _of_operator(self, name: str, kind: str, role: _Role, total: int) -> str:
        if kind == "count":
            return str(total)
        if kind == "ranks":
            return role.ranks or "auto"
        if kind == "endpoint":
            return self.values.token(Part("same", "job-worker-0", means="first-host")) + ":23456"
        if kind in ("first", _ONE, _OWN):
            means: ArgumentMeaning = "first-host" if kind == "first" else ""
            return self.values.token(Part("node" if kind == _OWN else "same", f"${name}", means=means))
        return kind

    def _container(self, container: dict[str, Node], frame: Frame, start: Start | None) -> None:
        words = [each for key in ("command", "args") for each in _list(container.get(key)) if isinstance(each, str)]
        if not words and start is not None and "PET_NNODES" in frame.variables:
            self._options("torchrun", [], frame, start, Call([], start.line))  # by the image, or by the runtime
        if words and words[0].startswith("-") and frame.variables.keys() & {"MASTER_ADDR", "PET_NNODES"}:
            self.leave(words[0].line, "the image's own command, which gets these arguments, is unknown")
        if not words or words[0].startswith("-"):
            return
        call = Call([], max(words, key=len).line)
        given = [self._referring(str(word), frame) for word in words]
        if self._is_template and words[0] not in starts.SHELLS:  # envsubst replaces variables in it
            given = [_VARIABLE.sub(lambda name: self.values.token(Part("same", name[0])), each) for each in given]
        self.start(given, frame, start, call)

    def _configuration(self, top: dict[str, Node]) -> None:
        """A file that a launcher reads."""
        arguments = {_ACCELERATE[name]: Argument(text=_text(top, name)) for name in _ACCELERATE if _text(top, name)}
        if _text(_map(top.get("deepspeed_config")), "deepspeed_multinode_launcher") in _NUMBERED_BY_LAUNCHER:
            arguments.pop("--node-rank", None)
        started: Any = "accelerate" if arguments else "deepspeed"
        if started == "deepspeed":
            arguments = {name: Argument(text=_text(top, name)) for name in _DEEPSPEED if _text(top, name)}
            for name in ("fp16", "bf16"):
                arguments[name] = Argument(text=_text(_map(top.get(name)), "enabled"))
        line = next((value.line for value in top.values() if isinstance(value, Scalar)), 1)
        self.launches.append(
            Launch(program="configuration", line=line, starts=started, arguments=arguments, by_hand=True)
        )


def _manifests_in(node: Node) -> Iterator[dict[str, Node]]:
    """Yield the manifests within another one, such as the components of an AppWrapper."""
    if {"kind", "apiVersion", "spec"} <= _map(node).keys():
        yield _map(node)
        return
    for each in [*_map(node).values(), *_list(node)]:
        yield from _manifests_in(each)


def _roles(kind: str, version: str, spec: dict[str, Node]) -> Iterator[_Role]:
    """Yield the pods of a job, by template."""
    if kind in ("PyTorchJob", "MPIJob"):
        yield from _of_training_operator(kind, spec)
    elif kind == "TrainJob":
        trainer = _map(spec.get("trainer"))
        count = _count(trainer, "numNodes") if "numNodes" in trainer else None
        yield _Role(count, [trainer], _BY_OPERATOR[kind], _text(trainer, "numProcPerNode"))
    elif kind == "JobSet":
        for each in _list(spec.get("replicatedJobs")):
            job = _map(_map(_map(each).get("template")).get("spec"))
            pods, copies = _pods(job), _count(_map(each), "replicas")
            yield _Role(pods * copies if pods and copies else None, _containers(job), _BY_OPERATOR["Job"])
    elif kind == "Job" and "volcano" in version:
        by_plugin = _BY_OPERATOR["volcano"] if "pytorch" in _map(spec.get("plugins")) else {}
        for each in _list(spec.get("tasks")):
            yield _Role(_count(_map(each), "replicas"), _containers(_map(each)), by_plugin)
    elif kind == "LeaderWorkerSet":
        group = _map(spec.get("leaderWorkerTemplate"))
        pods_of_group = _containers({"template": group.get("workerTemplate", {})})
        yield _Role(_count(group, "size"), pods_of_group, _BY_OPERATOR[kind])
    elif kind in _PLAIN:
        template: dict[str, Node] = {"template": {"spec": spec}} if kind == "Pod" else spec
        count = _pods(spec) if kind in ("Job", "Pod") else _count(spec, "replicas")
        yield _Role(count, _containers(template), _BY_OPERATOR["Job"] if kind == "Job" else {})


def _of_training_operator(kind: str, spec: dict[str, Node]) -> Iterator[_Role]:
    replicas = _map(spec.get("pytorchReplicaSpecs") or spec.get("mpiReplicaSpecs"))
    names = {name.lower(): name for name in replicas}
    about = kind if "master" in names else f"{kind} without Master"
    about = "elastic PyTorchJob" if "elasticPolicy" in spec else about
    for name in ("launcher", "master", "worker"):
        if name in names:
            role = _map(replicas[names[name]])
            ranks = _text(spec, "nprocPerNode") or _text(_map(spec.get("elasticPolicy")), "nProcPerNode")
            yield _Role(_count(role, "replicas"), _containers(role), _BY_OPERATOR.get(about, {}), ranks)


def _pods(job: dict[str, Node]) -> int | None:
    counts = [_count(job, name) for name in ("completions", "parallelism") if name in job]
    return None if None in counts else min((count for count in counts if count), default=1)


def _count(of: dict[str, Node], name: str) -> int | None:
    """Return a number of pods, 1 by default, or None if it is a template."""
    text = _text(of, name)
    return int(text) if text.isdecimal() and len(text) < 7 else None if text else 1


def _containers(of: dict[str, Node]) -> list[dict[str, Node]]:
    return [_map(each) for each in _list(_map(_map(of.get("template")).get("spec")).get("containers"))]


def _gpus(container: dict[str, Node]) -> int | None:
    return _gpus_in(_map(container.get("resources")))


def _gpus_in(resources: dict[str, Node]) -> int | None:
    for part in (_map(resources.get("limits")), _map(resources.get("requests"))):
        for name in _GPUS:
            if _text(part, name).isdecimal():
                return int(_text(part, name))
    return None


def _map(node: Node | None) -> dict[str, Node]:
    return node if isinstance(node, dict) else {}


def _list(node: Node | None) -> list[Node]:
    return node if isinstance(node, list) else []


def _text(of: dict[str, Node], name: str) -> str:
    found = of.get(name)
    return str(found) if isinstance(found, str) else ""


def _line(of: dict[str, Node]) -> int:
    return next((value.line for value in of.values() if isinstance(value, Scalar)), 1)
