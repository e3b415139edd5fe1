r"""The settings that a report hands over, as the ``env`` of a container in Kubernetes.

    env:
      - name: NCCL_IB_HCA
        value: "=mlx5_0:1"

Values are strings of JSON, which YAML reads the same way. Kubernetes replaces $(NAME) in them and makes one $ of two,
so each $ is doubled (core/v1 EnvVar).
"""

import json
import re

from ddp_doctor.remedies.settings_to_apply import SettingsToApply
from ddp_doctor.render import shell
from ddp_doctor.render.pasted.walk import page, walk

#: The field of a pod that does what an option does for docker run; {} is the option's value.
_IN_A_POD = {
    "--shm-size": "a volume with emptyDir: {{medium: Memory, sizeLimit: {}}}, mounted at /dev/shm",
    "--ipc": "hostIPC: true in the pod's spec",
    "--uts": "hostNetwork: true in the pod's spec, which gives the host's name as well",
    "--cap-add": 'securityContext: {{capabilities: {{add: ["{}"]}}}} of the container',
    "--ulimit": "no field of a pod: LimitMEMLOCK=infinity for the container runtime on the node, or the"
    " capability IPC_LOCK",
    "--device": "resources: limits of the RDMA device plug-in, under the name that it has in this cluster",
}


def render(given: SettingsToApply) -> str:
    """Comments, then the list; an empty list if there is nothing to set."""
    comments = []
    for option in given.options:
        note = f"   # {option.not_applied}" if option.not_applied else ""
        comments += [shell.remark(option.because), shell.comment(f"{_in_a_pod(option.option)}{note}")]
    found = walk(given, _entry)
    items = [f"  - name: {name}\n    value: {_string(value or '')}" for name, value in found.settings]
    text = "\n".join(["env:", *items]) if items else "env: []"
    return page("For a container of a pod", given, [*comments, *found.comments], text, sets=bool(items))


def _entry(name: str, value: str | None) -> str:
    if value is not None:
        return f"{{name: {name}, value: {_string(value)}}}"
    return f"{name} has to go: from ENV of the image and from this list: an empty value would leave it set"


def _string(value: str) -> str:
    return json.dumps(value.replace("$", "$$"), ensure_ascii=False)


def _in_a_pod(option: str) -> str:
    name, _, value = option.partition("=")
    if name not in _IN_A_POD:
        return f"{option} of docker run"
    return (
        f"{option} of docker run is here: {_IN_A_POD[name].format(re.sub('(?<=[0-9])([mg])$', _unit, value))}"
    )


def _unit(found: re.Match[str]) -> str:
    return f"{found[0].upper()}i"
