"""Rules on collectives that a rank may skip because of its own data, by chance, or by its clock.

if torch.isnan(loss): continue            one rank skips the backward pass, the others wait for it in theirs
if val_loss > best: bad += 1              counted from each rank's own part of the validation set
if bad > patience: break                  so that one rank stops and the others go on
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ddp_doctor.features.lint import frameworks
from ddp_doctor.features.lint.collectives import collectives, forwards
from ddp_doctor.features.lint.decisions import Reason, is_own_data, why_local
from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.rules.rank_conditions import misses
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Condition, Value
from ddp_doctor.model.choices import Consequence

#: Maximum number of early exits; each is compared with all collectives. Scripts written by hand have fewer.
_MOST_LEAVES = 200
#: Maximum number of characters of a condition to quote in a fix.
_MOST_WRITTEN = 40


@lint_rule("DDL135", "collective-by-data-of-one-rank", Consequence.RISK, concerns=always)
def collective_by_data_of_one_rank(script: Script) -> Iterator[Spot]:
    """A rank's own loss decides whether the rank takes part in a collective.

    Finds: A collective, or the backward pass of a wrapped model, under a condition on one of these: the output of that
        rank's own forward, the values in that rank's own batch (`if not mask.any()`, `if batch["size"] < n`), a batch
        that could not be read (`if batch is None`), random numbers without a common seed, or the clock. Also a
        `continue`, `break` or `return` under such a condition that skips a collective, or a loop that the clock ends. A
        counter, flag or attribute that is set under such a condition (`bad += 1`, `self.stop = True`), or by one rank
        only, counts as well, and so does an early-stopping object that receives such a loss. Also a `training_step` of
        a LightningModule that returns no loss for some batches. Not reported: values that a collective made equal on
        all ranks, shapes, and losses over a loader that gives every rank the same data.
    Why: Each rank has different data, draws different numbers and reads the clock at a different time. If the loss of
        one rank is not finite, or above the threshold, and the others' is not, that rank skips a collective in which
        the others wait. The job hangs at random, after hours.
    Remedy: Let the ranks agree first: all-reduce the flag with MAX, and use the result on all ranks.
    See: https://pytorch.org/docs/stable/distributed.html#collective-functions
    """
    found = [*_found(script), *_steps_without_loss(script)]
    found.sort(key=lambda each: each.reason.root is not each.test)  # direct tests first
    roots = set[Value]()
    for each in found:
        if each.reason.root not in roots:
            roots.add(each.reason.root)
            yield _spot(each)


class _Found(NamedTuple):
    """A collective that a rank may miss, and the test that decides it."""

    at: Value | ast.AST
    decided: str
    test: Value
    reason: Reason


def _found(script: Script) -> Iterator[_Found]:
    reduced = [call for call in collectives(script) if call not in forwards(script)]
    for call in reduced:
        for condition in call.conditions:
            found = None if condition.early else why_local(script, condition.test, call.place, call.order)
            if found is not None and not _is_in_both_branches(script, call, condition):
                decided = f"whether this {collectives(script)[call]} runs; other ranks may hang"
                yield _Found(call, decided, condition.test, found)
        for loop in call.loops:
            found = why_local(script, loop.test, call.place, call.order) if loop.test else None
            if found is not None:
                decided = f"when to leave this loop and skip the {collectives(script)[call]} in line {call.node.lineno}"
                yield _Found(loop.test, decided, loop.test, found)
    for leave in script.leaves[:_MOST_LEAVES] if reduced else ():
        for condition in leave.place.conditions:
            if condition.early:
                continue
            before = {name for call, name in collectives(script).items() if condition in call.conditions}
            candidates = (call for call in reduced if collectives(script)[call] not in before)
            missed = next((call for call in candidates if misses(leave, condition, call)), None)
            found = why_local(script, condition.test, leave.place, leave.order) if missed else None
            if missed and found and not (found.why == "its own batch" and isinstance(leave.node, ast.Break)):
                name, line = collectives(script)[missed], missed.node.lineno
                decided = f"whether to leave here and skip the {name} in line {line}"
                yield _Found(leave.node, decided, condition.test, found)


def _steps_without_loss(script: Script) -> Iterator[_Found]:
    """Yield returns of Lightning's training_step without a loss that depend on the batch."""
    for leave in () if script.uses("automatic_optimization") else script.leaves:
        function = leave.place.function
        if getattr(function, "name", "") != "training_step" or not (leave.value.is_none or not leave.value):
            continue
        batch = function.args.args[1].arg if function and len(function.args.args) > 1 else ""
        for condition in leave.place.conditions if frameworks.is_module(script, leave.place.cls) else ():
            parts = condition.test.sources()
            if not condition.early and any(part.kind == "parameter" and part.attribute == batch for part in parts):
                decided = "whether to return no loss here and skip the backward pass that Lightning runs"
                yield _Found(leave.node, decided, condition.test, Reason("its own batch", condition.test))


def _is_in_both_branches(script: Script, call: Call, condition: Condition) -> bool:
    return any(
        collectives(script)[other] == collectives(script)[call]
        and any(each.test is condition.test and each.holds != condition.holds for each in other.conditions)
        for other in collectives(script)
    )


def _spot(found: _Found) -> Spot:
    why, root = found.reason
    if why.startswith("only"):
        return Spot(
            found.at,
            f"{why.capitalize()} sets a value that decides {found.decided}",
            remedy=f"Set the value on all ranks, outside the condition in line {getattr(root.node, 'lineno', 0)},"
            " or broadcast it",
        )
    test = found.test.text if len(found.test.text) < _MOST_WRITTEN else "condition"
    return Spot(
        found.at,
        f"Each rank decides by {why} {found.decided}",
        remedy="All-reduce the condition first, and decide by the result",
        write=(f'flag = torch.tensor(float({test}), device="cuda")', "dist.all_reduce(flag, op=dist.ReduceOp.MAX)"),
        cost="one small all-reduce per step",
    )


_PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau"


@lint_rule("DDL188", "learning-rate-by-data-of-one-rank", Consequence.RISK, concerns=always)
def learning_rate_by_data_of_one_rank(script: Script) -> Iterator[Spot]:
    """A rank's own loss decides when the rank lowers its learning rate.

    Finds: `step(loss)` of a ReduceLROnPlateau with the output of a forward of the wrapped model, or with a sum or mean
        of such outputs. DDL135 lists the data of one rank, and the calls that make it equal on all ranks.
    Why: Each rank has its own scheduler. A rank whose loss stops falling lowers its learning rate some epochs before
        the others. All ranks apply the same gradients, but with different steps, so their models drift apart. DDP
        does not compare parameters again, and rank 0 saves only its own.
    Remedy: Average the loss over the ranks, and pass the average to all schedulers.
    See: https://pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
    """
    for call in script.methods("step"):
        loss = call.argument(0, "metrics")
        is_by_loss = loss and any(made.name == _PLATEAU for made in call.receiver.makers())
        if is_by_loss and is_own_data(script, loss, call.order):
            number = f'loss = torch.tensor(float({loss.text}), device="cuda")'
            yield Spot(
                call,
                "Each rank lowers its learning rate based on its own loss: the models of the ranks drift apart",
                remedy="Average the loss over all ranks first",
                write=(number, "dist.all_reduce(loss, op=dist.ReduceOp.AVG)"),
            )
