"""Rules on parameters that take no part in a backward pass.

DDP(model, find_unused_parameters=True)      walks the graph of every forward for parameters without a gradient
"""

from __future__ import annotations

from collections.abc import Iterator

from ddp_doctor.lint import modules, names
from ddp_doctor.lint.rule import Spot, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Value
from ddp_doctor.model.choices import Confidence, Severity


@lint_rule("DDL127", "unused-parameters-searched-in-vain", Severity.WARNING)
def searched_in_vain(script: Script) -> Iterator[Spot]:
    """find_unused_parameters=True, though the forward has no branch.

    What it finds
        `find_unused_parameters=True` for a model whose classes stand in the file, use all their layers and decide
        nothing in their forward. Where the model is not to be seen in the file, this is information, not a warning.

    Why it matters
        DDP then walks the whole autograd graph after every forward, and copies a map of used parameters over all ranks
        in every step. PyTorch itself warns of it in the log. It also hides a layer that was forgotten in the forward.

    Remedy
        Leave the flag out. If a step then fails with "Expected to have finished reduction", the message names the
        parameters that took no part. Where the same ones are unused in all steps, `static_graph=True` is cheaper.

    References
        https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """
    for wrap in script.wraps:
        behind = wrap.argument(names.SHARED_BY_DDP)
        has_init_sync = behind is not None and isinstance(behind.constant, bool)
        flag = wrap.argument(8 if has_init_sync else 7, "find_unused_parameters")
        if flag is None or flag.constant is not True:
            continue
        seen = modules.wrapped_modules(script, wrap)
        visible = bool(seen) and all(module.is_whole for module in seen)
        if visible and any(_may_need_it(script, module) for module in seen):
            continue
        yield Spot(
            wrap,
            "find_unused_parameters=True, though the forward of this model has no branch: the search finds nothing"
            if visible
            else "find_unused_parameters=True searches the graph in every step; only unused parameters need that",
            remedy="Leave find_unused_parameters out, and see whether a step complains",
            severity=None if visible else Severity.INFO,
            confidence=Confidence.LIKELY if visible else Confidence.POSSIBLE,
        )


@lint_rule("DDL128", "unused-parameters-not-allowed-for", Severity.ERROR)
def not_allowed_for(script: Script) -> Iterator[Spot]:
    """A layer takes no part in some forward, and DDP was not told to expect that.

    What it finds
        In the class of a wrapped model, a layer with parameters, or a Sequential of such, that nothing in the file uses
        (error), or that the forward uses only under a condition on its input or on chance (warning), also in one branch
        of `a if task == "left" else b`, or picks or skips by chance (`random.choice(self.layers)`), where DDP has
        neither `find_unused_parameters=True` nor `static_graph=True`.

    Why it matters
        DDP waits for the gradient of every parameter. A step in which one has none ends with "Expected to have finished
        reduction in the prior iteration" in the next step. Where ranks take different branches, they hang.

    Remedy
        Remove a layer that is not used. Where it is used in some steps only, set `find_unused_parameters=True`.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """
    for wrap in script.wraps:
        if len(wrap.args) > names.SHARED_BY_DDP or _allows_for_unused(wrap):
            continue
        for module in modules.wrapped_modules(script, wrap):
            if modules.reads_indirectly(script, module):
                continue
            for layer in modules.never_used(script, module):
                yield _unused(
                    layer, f"No forward uses this layer of {module.definition.name}: the second step fails"
                )
            for layer in modules.sometimes_used(script, module):
                title = (
                    f"Only some steps reach this layer of {module.definition.name}: a step without it fails"
                )
                yield _unused(layer, title, Severity.WARNING)


def _unused(layer: Value, title: str, severity: Severity | None = None) -> Spot:
    remedy = (
        "Wrap with find_unused_parameters=True" if severity else "Remove the layer, or use it in the forward"
    )
    cost = "DDP walks the autograd graph after every forward" if severity else ""
    return Spot(layer, title, remedy=remedy, cost=cost, severity=severity)


def _allows_for_unused(wrap: Call) -> bool:
    flags = (wrap.argument(None, name) for name in ("find_unused_parameters", "static_graph"))
    return wrap.has_stars or any(flag is not None and flag.constant is not False for flag in flags)


def _may_need_it(script: Script, module: modules.Module) -> bool:
    return (
        modules.has_branches(module)
        or modules.reads_indirectly(script, module)
        or any(modules.never_used(script, module))
        or any(modules.sometimes_used(script, module))
    )
