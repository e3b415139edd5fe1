"""The settings that a report hands over, as lines for a batch script of SLURM, in front of its ``srun``.

srun hands the environment of the batch script to all tasks, so a value that differs by host cannot be exported
there. Such values travel as one variable of text, which each task evaluates.
"""

from ddp_doctor.remedies.settings_to_apply import SettingsToApply
from ddp_doctor.render import shell
from ddp_doctor.render.pasted import env_file

_PER_HOST = "DDP_DOCTOR_PER_HOST"
#: The kernel takes one variable of 128 KiB (MAX_ARG_STRLEN), name and end included.
_LONGEST_TEXT = 120_000
_NOT_PASSED_ON = (
    "Where the job is submitted with --export=NONE or a list, srun passes these on only after:"
    " export SLURM_EXPORT_ENV=ALL"
)
_TOO_LONG = (
    "Values that differ by host: too many for one variable; write them with --env-file to a folder that all"
    " hosts see, and call: srun sh -c '. THAT_FILE; exec \"$@\"' sh PROGRAM ARGUMENTS"
)


def render(given: SettingsToApply) -> str:
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
            lines += env_file.explained(variable)
    text = "\n".join(env_file.statement(variable) for variable in per_host)
    if len(text.encode()) > _LONGEST_TEXT:
        lines.append(shell.comment(_TOO_LONG))
    elif text:
        lines.append(shell.comment("Values that differ by host; each task takes its own:"))
        lines.append(f"export {_PER_HOST}={shell.quoted(text)}")
        call = f'srun sh -c \'eval "${_PER_HOST}"; exec "$@"\' sh PROGRAM ARGUMENTS'
        lines.append(shell.comment(f"so call: {call}"))
    return "\n".join([*lines, *env_file.nothing_set(given)]) + "\n"
