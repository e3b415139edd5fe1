"""The settings that a report hands over, as lines of a shell: to ``source`` in bash, dash or zsh, and for SLURM.

A candidate that was not tried is a comment: in a healthy job it could do harm. srun hands the environment of the batch
script to all tasks, so there a value that differs by host travels in one variable of text, which each task evaluates.
"""

import textwrap
from collections.abc import Iterator

from ddp_doctor.remedies.settings_to_apply import SettingsToApply, Variable
from ddp_doctor.remedies.values_by_host import Branch, short_name
from ddp_doctor.render import shell

_EACH_ITS_OWN = (
    "The values below differ by host: source this file on each, in the task itself (srun, mpirun and ssh hand"
    " on the environment of the host that they are called on)."
)
_PER_HOST = "DDP_DOCTOR_PER_HOST"
#: The kernel takes one variable of 128 KiB (MAX_ARG_STRLEN), name and end included.
_LONGEST_TEXT = 120_000
_NOT_PASSED_ON = (
    "Where the job is submitted with --export=NONE or a list, srun passes these on only after:"
    " export SLURM_EXPORT_ENV=ALL"
)
_TOO_LONG = (
    "Values that differ by host: too many for one variable; write them with --settings env:FILE to a folder that all"
    " hosts see, and call: srun sh -c '. THAT_FILE; exec \"$@\"' sh PROGRAM ARGUMENTS"
)


def env_file(given: SettingsToApply) -> str:
    """``export`` and ``unset`` lines with finding, proof and undo."""
    lines = [shell.remark(f"Settings recommended by {given.source}")]
    if any(variable.per_host and not variable.not_applied for variable in given.variables):
        lines.append(shell.comment(_EACH_ITS_OWN))
    for variable in given.variables:
        lines += _explained(variable)
    return "\n".join([*lines, *_nothing_set(given)]) + "\n"


def sbatch_lines(given: SettingsToApply) -> str:
    """``export`` lines with comments, and how tasks take values of their own host."""
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
    """The comment on a variable and the command that sets it; commented out if it is not applied."""
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
    """What a host of the branch may call itself, for a shell's ``case``: with its domain or without it.

    ``namesakes`` are short names that several hosts share; there only the whole name counts.
    """
    if not branch.hosts:
        return ["*"]
    found = []
    for host in branch.hosts:
        short = short_name(host)
        pattern = short if short != host else f"{host}.*"
        found += [host] if short in namesakes else [host, pattern]
    return found
