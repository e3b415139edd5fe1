r"""The settings that a report recommends, in the forms that users paste.

    docker_args      --shm-size=2g -e NCCL_SOCKET_IFNAME=eth1
    torchrun_args    env -u NCCL_SOCKT_IFNAME NCCL_SOCKET_IFNAME=eth1 torchrun
    k8s_env          env:
                       - name: NCCL_IB_HCA
                         value: "=mlx5_0:1"

Above each form are comments: the reasons, and what the form cannot contain. These forms are one line or list for all
hosts. Lines for a shell (to ``source`` in bash, dash or zsh) and for SLURM distinguish hosts. In them a candidate that
was not tested is a comment, because it could harm a healthy job. srun passes the environment of the batch script to all
tasks, so a value that differs by host is in one variable of text, which each task evaluates.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

from ddp_doctor.remedies.settings_to_apply import SettingsToApply, Variable
from ddp_doctor.remedies.values_by_host import Branch, short_name
from ddp_doctor.render import shell
from ddp_doctor.wording.nodes import name_list

_MOST_VALUES = 8
#: Variables that torchrun overwrites for its ranks, and the option that sets the same. torchrun passes the rest of its
#: environment to them.
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
    """Return comments, then one line of shell words; an empty line if there is nothing to set."""
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
    """Return the two shell words for one variable, or what to do if it must be unset.

    A name without a value removes the variable if the caller has none of that name (moby, ReplaceOrAppendEnvValues).
    Otherwise docker would add the caller's value.
    """
    if value is not None:
        return f"-e {name}={shell.quoted(value)}"
    return (
        f"unset {name}: remove it from ENV of the image, or if this shell lacks it, pass -e {name} without a value"
        f" (-e {name}= would set it to an empty value)"
    )


def torchrun_args(given: SettingsToApply) -> str:
    """Return comments, then one line of shell words; only the word torchrun if there is nothing to set."""
    comments, settings = _walk(given, _word, can_unset=True)
    unset = [_word(name, None) for name, value in settings if value is None]
    words = [_word(name, value) for name, value in settings if value is not None and name not in _OF_TORCHRUN]
    options = [_word(name, value) for name, value in settings if value is not None and name in _OF_TORCHRUN]
    if options:
        comments.append(shell.comment("if the command has --rdzv-endpoint, name the host in that option instead"))
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
    """Return comments, then the list; an empty list if there is nothing to set."""
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
    return f"unset {name}: remove it from ENV of the image and from this list; an empty value would leave it set"


def _string(value: str) -> str:
    """Return JSON, which is also YAML; Kubernetes makes one $ of two, and replaces $(NAME) (core/v1 EnvVar)."""
    return json.dumps(value.replace("$", "$$"), ensure_ascii=False)


#: Formats a variable with its value, or with None if it is to be unset.
_Form = Callable[[str, str | None], str]


def _walk(
    given: SettingsToApply, form: _Form, *, can_unset: bool = False
) -> tuple[list[str], list[tuple[str, str | None]]]:
    """Return the comments on all variables, in order, and the settings for all hosts; None unsets the variable.

    If the form cannot unset one, a comment says to unset it.
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
    """Return the complete text: its source, the comments, and at the end the line or list, which may set nothing."""
    lines = [shell.remark(f"{heading}, recommended by {given.source}"), *comments]
    if not sets:
        lines.append(shell.comment("nothing is set" if given.variables or given.options else "nothing to set"))
    return "\n".join([*lines, end]) + "\n"


def _notes(variable: Variable, form: _Form) -> Iterator[str]:
    """Yield comments: the reason, and values in this ``form`` that the line cannot contain, by host or not applied."""
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


# --- lines of a shell ------------------------------------------------------------------------------

_EACH_ITS_OWN = (
    "The values below differ by host: source this file on each, in the task itself (srun, mpirun and ssh pass on"
    " the environment of the calling host)."
)
_PER_HOST = "DDP_DOCTOR_PER_HOST"
#: The kernel takes one variable of 128 KiB (MAX_ARG_STRLEN), name and end included.
_LONGEST_TEXT = 120_000
_NOT_PASSED_ON = (
    "If the job is submitted with --export=NONE or a list, srun passes these on only after: export SLURM_EXPORT_ENV=ALL"
)
_TOO_LONG = (
    "Values that differ by host: too many for one variable; write them with --settings env:FILE to a folder that all"
    " hosts see, and call: srun sh -c '. THAT_FILE; exec \"$@\"' sh PROGRAM ARGUMENTS"
)


def env_file(given: SettingsToApply) -> str:
    """Return ``export`` and ``unset`` lines with finding, proof and undo."""
    lines = [shell.remark(f"Settings recommended by {given.source}")]
    if any(variable.per_host and not variable.not_applied for variable in given.variables):
        lines.append(shell.comment(_EACH_ITS_OWN))
    for variable in given.variables:
        lines += _explained(variable)
    return "\n".join([*lines, *_nothing_set(given)]) + "\n"


def sbatch_lines(given: SettingsToApply) -> str:
    """Return ``export`` lines with comments, and how tasks use the values of their host."""
    lines = [shell.remark(f"Settings recommended by {given.source}")]
    applied = [variable for variable in given.variables if variable.branches and not variable.not_applied]
    if applied:
        lines.append(shell.comment(_NOT_PASSED_ON))
    per_host = [variable for variable in applied if variable.per_host]
    for variable in given.variables:
        if variable in per_host:
            lines.append(shell.remark(variable.because))
        else:
            lines += _explained(variable)
    text = "\n".join(_statement(variable) for variable in per_host)
    if len(text.encode()) > _LONGEST_TEXT:
        lines.append(shell.comment(_TOO_LONG))
    elif text:
        lines.append(shell.comment("Values that differ by host; each task takes its own:"))
        lines.append(f"export {_PER_HOST}={shell.quoted(text)}")
        call = f'srun sh -c \'eval "${_PER_HOST}"; exec "$@"\' sh PROGRAM ARGUMENTS'
        lines.append(shell.comment(f"so call: {call}"))
    return "\n".join([*lines, *_nothing_set(given)]) + "\n"


def _explained(variable: Variable) -> Iterator[str]:
    """Yield the comment on a variable and the command that sets it; commented out if it is not applied."""
    yield shell.remark(variable.because)
    if not variable.branches:
        yield shell.remark(f"{variable.name}: not applied")
    elif not variable.not_applied:
        yield _statement(variable)
    elif variable.per_host:
        yield shell.remark(f"{variable.not_applied}:")
        yield textwrap.indent(_statement(variable), "# ", lambda _line: True)
    else:
        yield shell.comment(_statement(variable), variable.not_applied)


def _statement(variable: Variable) -> str:
    if not variable.per_host:
        return "\n".join(shell.assignment(variable.name, branch.value) for branch in variable.branches)
    return shell.case(
        (patterns(branch, variable.namesakes), shell.assignment(variable.name, branch.value))
        for branch in variable.branches
    )


def _nothing_set(given: SettingsToApply) -> Iterator[str]:
    if not given.variables:
        yield shell.comment("nothing to set")
    elif all(variable.not_applied or not variable.branches for variable in given.variables):
        yield shell.comment("nothing is set; take the # off to try a candidate")


def patterns(branch: Branch, namesakes: frozenset[str]) -> list[str]:
    """Return patterns for a shell's ``case`` of the names a host of the branch may report: with or without its domain.

    ``namesakes`` are short names that several hosts share; for these only the full name counts.
    """
    if not branch.hosts:
        return ["*"]
    found = []
    for host in branch.hosts:
        short = short_name(host)
        pattern = short if short != host else f"{host}.*"
        found += [host] if short in namesakes else [host, pattern]
    return found
