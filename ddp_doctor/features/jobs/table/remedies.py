"""Fixes for failed jobs, for the rows of their causes."""

from functools import partial

from ddp_doctor.model.finding import Remedy, Scope, Setting


def remedy(
    summary: str,
    *commands: str,
    scope: Scope = "job",
    settings: tuple[Setting, ...] = (),
    cost: str = "",
    undo: str = "",
    container: tuple[str, ...] = (),
) -> Remedy:
    """Return a fix for a failed job, which ddp-doctor does not test."""
    return Remedy(
        summary=summary, commands=commands, scope=scope, settings=settings, cost=cost, undo=undo, container=container
    )


in_code = partial(remedy, scope="code")
on_node = partial(remedy, scope="node")


def setting(name: str, value: str, why: str = "") -> Setting:
    """Return a variable to set."""
    return Setting(name=name, value=value, why=why)


def unset(name: str, why: str = "") -> Setting:
    """Return a variable to unset."""
    return Setting(name=name, action="unset", why=why)
