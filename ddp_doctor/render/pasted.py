r"""The settings that a report hands over, in the forms that people paste: one line or one list for all hosts.

    docker_args      --shm-size=2g -e NCCL_SOCKET_IFNAME=eth1
    torchrun_args    env -u NCCL_SOCKT_IFNAME NCCL_SOCKET_IFNAME=eth1 torchrun
    k8s_env          env:
                       - name: NCCL_IB_HCA
                         value: "=mlx5_0:1"

Above it are comments: why, and what cannot be part of it. Files of a shell, which tell hosts apart: pasted_scripts.py.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence

from ddp_doctor.remedies.settings_to_apply import SettingsToApply, Variable
from ddp_doctor.render import shell
from ddp_doctor.wording.nodes import name_list

_MOST_VALUES = 8
#: Variables that torchrun overwrites for its ranks, and the option that says the same to itself. It hands them the
#: rest of its own environment.
_OF_TORCHRUN = {"MASTER_ADDR": "--master-addr", "MASTER_PORT": "--master-port"}
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


def docker_args(given: SettingsToApply) -> str:
    """Comments, then one line of shell words; an empty line if there is nothing to set."""
    comments = []
    for option in given.options:
        comments.append(shell.remark(option.because))
        if option.not_applied:
            comments.append(shell.comment(option.option, option.not_applied))
    on_variables, settings = _walk(given, _argument)
    words = [option.option for option in given.options if not option.not_applied]
    words += [_argument(name, value) for name, value in settings]
    comments += on_variables
    return _page("Arguments of docker run", given, comments, " ".join(words), sets=bool(words))


def _argument(name: str, value: str | None) -> str:
    """The two words of a shell for one variable, or what to do where it has to go.

    A name without a value takes the variable away where the caller has none of that name (moby,
    ReplaceOrAppendEnvValues); where it has, it would bring just that value in.
    """
    if value is not None:
        return f"-e {name}={shell.quoted(value)}"
    return (
        f"{name} has to go: from ENV of the image, or where this shell has none by -e {name} without a value:"
        f" -e {name}= would leave it set, to nothing"
    )


def torchrun_args(given: SettingsToApply) -> str:
    """Comments, then one line of shell words; only the word torchrun if there is nothing to set."""
    comments, settings = _walk(given, _word, can_unset=True)
    unset = [_word(name, None) for name, value in settings if value is None]
    words = [_word(name, value) for name, value in settings if value is not None and name not in _OF_TORCHRUN]
    options = [_word(name, value) for name, value in settings if value is not None and name in _OF_TORCHRUN]
    if options:
        comments.append(shell.comment("where the command has --rdzv-endpoint, name the host there instead"))
    prefix = ["env", *unset, *words] if unset or words else []
    line = " ".join([*prefix, "torchrun", *options])
    return _page("In place of the word torchrun", given, comments, line, sets=bool(settings))


def _word(name: str, value: str | None) -> str:
    if value is None:
        return f"-u {name}"
    if name in _OF_TORCHRUN:
        return f"{_OF_TORCHRUN[name]}={shell.quoted(value)}"
    return f"{name}={shell.quoted(value)}"


def k8s_env(given: SettingsToApply) -> str:
    """Comments, then the list; an empty list if there is nothing to set."""
    comments = []
    for option in given.options:
        note = f"   # {option.not_applied}" if option.not_applied else ""
        name, _, value = option.option.partition("=")
        if re.search("[0-9][mg]$", value):
            value = f"{value[:-1]}{value[-1].upper()}i"
        here = f" is here: {_IN_A_POD[name].format(value)}" if name in _IN_A_POD else ""
        comments += [shell.remark(option.because), shell.comment(f"{option.option} of docker run{here}{note}")]
    on_variables, settings = _walk(given, _entry)
    items = [f"  - name: {name}\n    value: {_string(value or '')}" for name, value in settings]
    text = "\n".join(["env:", *items]) if items else "env: []"
    return _page("For a container of a pod", given, [*comments, *on_variables], text, sets=bool(items))


def _entry(name: str, value: str | None) -> str:
    if value is not None:
        return f"{{name: {name}, value: {_string(value)}}}"
    return f"{name} has to go: from ENV of the image and from this list: an empty value would leave it set"


def _string(value: str) -> str:
    """JSON, which YAML reads the same way; Kubernetes makes one $ of two, and replaces $(NAME) (core/v1 EnvVar)."""
    return json.dumps(value.replace("$", "$$"), ensure_ascii=False)


#: Writes a variable with its value, or with None if it is to be unset.
_Form = Callable[[str, str | None], str]


def _walk(
    given: SettingsToApply, form: _Form, *, can_unset: bool = False
) -> tuple[list[str], list[tuple[str, str | None]]]:
    """The comments on all variables, in order, and what is set on all hosts; None unsets the variable.

    If the form cannot unset one, a comment says that it has to go.
    """
    comments: list[str] = []
    settings: list[tuple[str, str | None]] = []
    for variable in given.variables:
        comments += _notes(variable, form)
        branch = variable.everywhere
        if branch is None or variable.not_applied:
            continue
        if branch.value is None and not can_unset:
            comments.append(shell.comment(form(variable.name, None)))
        else:
            settings.append((variable.name, branch.value))
    return comments, settings


def _page(heading: str, given: SettingsToApply, comments: Sequence[str], end: str, *, sets: bool) -> str:
    """The whole text: its source, the comments, and at the end the line or list, which may set nothing."""
    lines = [shell.remark(f"{heading}, recommended by {given.source}"), *comments]
    if not sets:
        lines.append(shell.comment("nothing is set" if given.variables or given.options else "nothing to set"))
    return "\n".join([*lines, end]) + "\n"


def _notes(variable: Variable, form: _Form) -> Iterator[str]:
    """Why it is set, and its values in this ``form`` that cannot be part of the line: by host, or not applied."""
    yield shell.remark(variable.because)
    if not variable.branches:
        yield shell.remark(f"{variable.name}: not applied")
    for branch in variable.per_host[:_MOST_VALUES]:
        value = form(variable.name, branch.value)
        yield shell.comment(f"on {name_list(branch.hosts)} only: {value}", variable.not_applied)
    if more := len(variable.per_host[_MOST_VALUES:]):
        yield shell.comment(f"and {more} more values on other hosts; --settings env:FILE has them all")
    if variable.everywhere and variable.not_applied:
        yield shell.comment(form(variable.name, variable.everywhere.value), variable.not_applied)
