"""The settings that a report hands over, as arguments of ``docker run`` (or ``podman run``) on the last line.

# DD212; Start the container with --shm-size=2g …
--shm-size=2g -e NCCL_SOCKET_IFNAME=eth1
"""

from ddp_doctor.remedies.settings_to_apply import SettingsToApply
from ddp_doctor.render import shell
from ddp_doctor.render.pasted.walk import page, walk


def render(given: SettingsToApply) -> str:
    """Comments, then one line of shell words; an empty line if there is nothing to set."""
    comments = []
    for option in given.options:
        comments.append(shell.remark(option.because))
        if option.not_applied:
            comments.append(shell.comment(option.option, option.not_applied))
    found = walk(given, _argument)
    words = [option.option for option in given.options if not option.not_applied]
    words += [_argument(name, value) for name, value in found.settings]
    comments += found.comments
    return page("Arguments of docker run", given, comments, " ".join(words), sets=bool(words))


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
