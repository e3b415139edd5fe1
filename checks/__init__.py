"""CHECKS: the checks of ``ddp-doctor run``, in order: cheap checks that explain the findings of others come first.

To add a check: write its module in one of the four groups (docstring with a sample of the raw input, probe, rules,
``CHECK``), or a package: ``__init__.py`` with docstring, probe and ``CHECK``, and a module for each group of rules,
whose docstring begins with their codes. Put its facts in ddp_doctor/facts. Add it to the lists below, and give each of
its rules a recording in tests/recordings in which it fires and one in which it does not. tests/test_architecture.py
reports missing parts; ``make docs`` generates its reference page.

Processes, engine, renderers and use cases import only this module of the package.
"""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from ddp_doctor.features import ADDED, features_in, is_loadable, recorded_by, run_feature, run_features
from ddp_doctor.model.check import COMPILE, USER_MODEL, Check
from ddp_doctor.model.choices import Command, Where
from ddp_doctor.model.fact import Fact, Reading, Skip
from ddp_doctor.model.recording import Recording

__all__ = ["CHECKS", "checks_of", "every_check", "read_pasted"]

CHECKS: tuple[Check, ...]  # all of them; __getattr__ makes it


def _checks_in(*modules: ModuleType) -> tuple[Check, ...]:
    return tuple(module.CHECK for module in modules)


@cache
def _before_ranks() -> tuple[Check, ...]:
    from ddp_doctor.checks.node import env_vars, gpus, host, interfaces, kernel, nccl, pcie, rdma, software, topology

    return _checks_in(env_vars, software, nccl, host, gpus, kernel, pcie, topology, interfaces, rdma)


@cache
def _after_ranks() -> tuple[Check, ...]:
    from ddp_doctor.checks.node.kernel import afterwards as kernel_after
    from ddp_doctor.checks.node.rdma import afterwards as rdma_after

    return _checks_in(rdma_after, kernel_after)


def _not_asked_for(name: str) -> Check:
    """Return a check of a feature whose option is not given, as plans and reports list it."""
    row = ADDED[name]
    return Check(name, row.title, Where.RANK, _not_run, (), level=row.level, needs_model=True)


def _not_run(_ctx: object) -> Fact:
    raise Skip("its option is not given")


@cache
def _all_checks(*, has_model: bool) -> tuple[Check, ...]:
    from ddp_doctor.checks.cluster import baseline, connectivity, consistency, roll_call, torchrun
    from ddp_doctor.checks.collectives import (
        allreduce,
        collectives,
        gpu_speed,
        isolation,
        job_collectives,
        mesh,
        nccl_diagnostics,
        p2p,
        process_group,
        repeats,
        same_products,
        stragglers,
    )
    from ddp_doctor.checks.ddp import buffers, checkpoint, gradient_sync, initial_state, step_time

    added = {name: _not_asked_for(name) for name in ADDED}
    if has_model:
        added |= {check.id: check for check in run_feature("model").checks}
    return (
        *_before_ranks(),
        *_checks_in(roll_call, consistency, connectivity, torchrun, isolation),
        *_checks_in(process_group, gpu_speed, same_products, stragglers, allreduce),
        *_checks_in(initial_state, gradient_sync, buffers, checkpoint),
        *_checks_in(p2p, collectives),
        added[USER_MODEL],
        mesh.CHECK,
        added[COMPILE],
        *_checks_in(step_time, job_collectives, repeats, nccl_diagnostics),
        *_after_ranks(),
        baseline.CHECK,
    )


if not TYPE_CHECKING:  # otherwise, type checkers would accept any name

    def __getattr__(name: str) -> tuple[Check, ...]:
        """Make CHECKS on first use, because a prolog (a tenth slower with it) and ``logs`` do not need it."""
        if name == "CHECKS":
            return _all_checks(has_model=is_loadable("model"))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def checks_of(command: Command, *, has_model: bool = True) -> tuple[Check, ...]:
    """Return the checks that have something to evaluate in a recording of this command.

    Without a user's model, the checks that need one are only listed.
    """
    if (feature := recorded_by(command)) is None:
        return (*_before_ranks(), *_after_ranks()) if command.is_of_one_node else _all_checks(has_model=has_model)
    names = [*feature.reads, *(["collectives.process_group"] if command.has_ranks else [])]
    before = _checks_in(*(import_module(f"{__name__}.{name}") for name in names))
    if feature.has_all_reduces:
        from ddp_doctor.checks.collectives import allreduce

        return (*before, *feature.checks, allreduce.CHECK)
    return (*before, *feature.checks)


def every_check(recording: Recording | None = None) -> tuple[Check, ...]:
    """Return the checks of all commands. With a recording, omit the features that have no facts in it."""
    has_model = is_loadable("model") if recording is None else bool(run_features(recording))
    of_features = (check for feature in features_in(recording) for check in feature.checks)
    return (*_all_checks(has_model=has_model), *of_features)


def read_pasted(text: str) -> tuple[Reading, ...]:
    """Return the readings of a pasted topology."""
    from ddp_doctor.checks.node.topology import pasted

    return pasted.read_pasted(text)
