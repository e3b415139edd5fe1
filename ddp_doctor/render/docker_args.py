"""The settings that a report hands over, as arguments of ``docker run`` (or ``podman run``) on the last line.

# DD212; Start the container with --shm-size=2g …
--shm-size=2g -e NCCL_SOCKET_IFNAME=eth1
"""

from ddp_doctor.render import shell
from ddp_doctor.render.handover import HandOver
from ddp_doctor.render.notes import notes, nothing_set


def render(given: HandOver) -> str:
    """Comments, then one line of shell words; an empty one where there is nothing to set."""
    lines = [shell.remark(f"Arguments of docker run, recommended by {given.source}")]
    words = []
    for option in given.options:
        lines.append(shell.remark(option.because))
        if option.not_applied:
            lines.append(shell.comment(option.option, option.not_applied))
        else:
            words.append(option.option)
    for variable in given.variables:
        lines += notes(variable, _argument)
        branch = variable.everywhere
        if branch and not variable.not_applied:
            if branch.value is None:
                lines.append(shell.comment(_argument(variable.name, None)))
            else:
                words.append(_argument(variable.name, branch.value))
    if not words:
        lines.append(nothing_set(given))
    return "\n".join([*lines, " ".join(words)]) + "\n"


def _argument(name: str, value: str | None) -> str:
    """For one variable: two words of a shell, or what to do where it has to go.

    A name without a value takes the variable away where the caller has none of that name (moby,
    ReplaceOrAppendEnvValues); where it has, it would bring just that value in.
    """
    if value is not None:
        return f"-e {name}={shell.quoted(value)}"
    return (
        f"{name} has to go: from ENV of the image, or where this shell has none by -e {name} without a value:"
        f" -e {name}= would leave it set, to nothing"
    )
