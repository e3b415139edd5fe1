"""The settings that a report hands over, as what takes the place of the word ``torchrun`` in a command.

    env -u NCCL_SOCKT_IFNAME NCCL_SOCKET_IFNAME=eth1 torchrun

torchrun hands its own environment to the ranks, but for what it gives them itself: MASTER_ADDR and MASTER_PORT
become its options.
"""

from ddp_doctor.remedies.settings_to_apply import SettingsToApply
from ddp_doctor.render import shell
from ddp_doctor.render.pasted.walk import page, walk

#: Variables that torchrun overwrites for its ranks, and the option that says the same to itself.
_OPTIONS = {"MASTER_ADDR": "--master-addr", "MASTER_PORT": "--master-port"}


def render(given: SettingsToApply) -> str:
    """Comments, then one line of shell words; only the word torchrun if there is nothing to set."""
    comments, found = walk(given, _word, can_unset=True)
    unset = [_word(name, None) for name, value in found if value is None]
    settings = [_word(name, value) for name, value in found if value is not None and name not in _OPTIONS]
    options = [_word(name, value) for name, value in found if value is not None and name in _OPTIONS]
    if options:
        comments.append(shell.comment("where the command has --rdzv-endpoint, name the host there instead"))
    prefix = ["env", *unset, *settings] if unset or settings else []
    words = " ".join([*prefix, "torchrun", *options])
    return page("In place of the word torchrun", given, comments, words, sets=bool(found))


def _word(name: str, value: str | None) -> str:
    if value is None:
        return f"-u {name}"
    if name in _OPTIONS:
        return f"{_OPTIONS[name]}={shell.quoted(value)}"
    return f"{name}={shell.quoted(value)}"
