"""DD840 to DD844: what torch.compile makes of the user's own model."""

from collections.abc import Iterator

from ddp_doctor.features.model.compile.facts import CompiledFact, CompiledStep
from ddp_doctor.features.model.user_model.wording import at, code
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.torch_calls import in_model_code
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, likely, proved
from ddp_doctor.wording.nodes import and_more
from ddp_doctor.wording.ranks import capital, rank_culprits, ranks_at, short

_DYNAMIC = "compile/programming_model.dynamic_shapes.html"
#: With fewer recompilations in a row, torch may only be marking sizes as dynamic: once for each size that changes.
_IN_A_ROW = 3
_LINES_IN_A_TITLE = 3


def facts_by_rank(recording: Recording) -> dict[int, CompiledFact]:
    """Return the facts of all ranks, in the order of the ranks."""
    return dict(sorted((rank.rank or 0, rank.fact) for rank in recording.facts(CompiledFact)))


def _by_step(recording: Recording) -> dict[int, list[tuple[int, CompiledStep]]]:
    """Return the ranks' steps by step number."""
    return grouped((step.step, (rank, step)) for rank, fact in facts_by_rank(recording).items() for step in fact.steps)


def _culprits(recording: Recording, ranks: list[int]) -> tuple[Culprit, ...]:
    """Return these ranks as culprits if they are a minority."""
    return rank_culprits(recording, CompiledFact, ranks) if 2 * len(ranks) < len(facts_by_rank(recording)) else NOBODY


@rule("DD840", "compiled-graphs-differ", Consequence.RISK, CompiledFact, explained_by=("DD776",))
def graphs_differ(recording: Recording) -> Iterator[Draft]:
    """torch.compile captures different graphs on some ranks.

    Finds: Reports ranks whose graphs, in the same step, call something else than most ranks' graphs, have another type,
        or break elsewhere, with the first call that differs and its line. Also reports ranks on which nothing is
        compiled. Sizes are compared if the batches of all ranks have the same sizes.
    Why: These ranks compute something else, or compile for longer, while the others wait in their next collective.
        Collectives inside the graphs are called in a different order, and the job hangs. DDP itself keeps the order of
        its buckets, because rank 0 sends it to the others.
    Remedy: Let all ranks take the same path with the same configuration. Move code that only rank 0 runs (printing,
        logging) out of the model's forward.
    See: https://docs.pytorch.org/docs/stable/compile/programming_model.graph_breaks_index.html
    """
    for number, steps in _by_step(recording).items():
        parted = [(rank, step) for rank, step in steps if step.parting]
        idle = [rank for rank, step in steps if not (number or step.graphs or step.breaks)]
        if not parted and not 0 < len(idle) < len(steps):
            continue
        odd = [rank for rank, _ in parted] or idle
        model = next(iter(facts_by_rank(recording).values())).model
        title, place = f"No part of {model} is compiled on {ranks_at(recording, odd)}, unlike on other ranks", ""
        evidence = [f"step {number}, rank {rank}: no graph" for rank in idle]
        for rank, step in reversed(parted):
            assert step.parting is not None
            calls, peer = (step.parting.here, step.parting.there), step.parting.peer
            here, there = (f"{call.module}{at(call.where)}" if call else "no further call" for call in calls)
            who = f"{capital(ranks_at(recording, odd))} {'compiles' if len(odd) == 1 else 'compile'}"
            title = (
                f"{who} different graphs of {model} than rank {peer}:"
                f" rank {rank} has {here}, but rank {peer} has {there}"
            )
            place = next((call.where for call in calls if call and call.where), "")
            evidence.insert(0, f"step {number}, rank {rank}: {here}; rank {peer}: {there}")
        same_sizes = len({step.batch for _, step in steps}) == 1
        yield (proved if same_sizes else likely)(
            (*_culprits(recording, odd), *code(place)),
            title,
            (Evidence(text=text) for text in evidence[:LINES_OF_EVIDENCE]),
            in_model_code(
                "Take the same path through forward on all ranks, with the same"
                " configuration; do work of a single rank (printing, logging) outside of it",
                reference="compile/programming_model.graph_breaks_index.html",
            ),
            detail="Other ranks wait in their next collective while a rank compiles different code."
            + ("" if same_sizes else " The ranks' batches have different sizes, which may be the cause."),
        )
        return


@rule("DD841", "compiled-again-on-some-ranks", Consequence.COST, CompiledFact, explained_by=("DD840",))
def compiled_on_some(recording: Recording) -> Iterator[Draft]:
    """Some ranks compile again in a step in which the others do not.

    Finds: Reports functions that some ranks compiled in a step after the first one because a guard failed: a batch of
        another size, a changed attribute, or a branch that was not taken before.
    Why: Each rank compiles separately. The others wait in their next collective until it is done: seconds, or minutes
        for a large model. If that exceeds the group's timeout, the job ends.
    Remedy: For a smaller last batch, set ``drop_last=True`` in the loader. Otherwise, call
        ``torch._dynamo.mark_dynamic(batch, 0)`` before the first forward, or use ``torch.compile(dynamic=True)``.
        ``torch.compiler.set_enable_guard_collectives`` makes all ranks compile when one has to, at the cost of a
        collective in each call.
    See: https://docs.pytorch.org/docs/stable/compile/programming_model.dynamic_shapes.html
        https://docs.pytorch.org/docs/stable/generated/torch.compiler.set_enable_guard_collectives.html
    """
    uneven = {
        number: alone
        for number, steps in _by_step(recording).items()
        if number and 0 < len(alone := [(rank, step) for rank, step in steps if step.compiled]) < len(steps)
    }
    if not uneven:
        return
    number, alone = min(uneven.items(), key=lambda step: (len(step[1]), step[0]))
    ranks = [rank for rank, _ in alone]
    rank, step = alone[0]
    before = {earlier.batch for earlier in facts_by_rank(recording)[rank].steps if earlier.step < number}
    resized = step.batch not in before
    whose = "its" if len(ranks) == 1 else f"rank {rank}'s"
    why = f"{whose} batch changed from {min(before)} to {step.batch}" if resized else _failed(step.compiled[0].reason)
    where = step.compiled[0].where
    yield proved(
        (*_culprits(recording, ranks), *code("" if resized else where)),
        f"{capital(ranks_at(recording, ranks))}"
        f" {'recompiles' if len(ranks) == 1 else 'recompile'}"
        f" {step.compiled[0].function}{at(where)} in step {number} (other ranks do not):"
        f" {why or 'a branch that was not taken before'}",
        tuple(
            Evidence(
                text=f"step {number}, rank {rank}, batch {step.batch}:"
                f" {step.compiled[0].reason or 'not compiled before'}"
            )
            for number, of_step in sorted(uneven.items())
            for rank, step in of_step
        )[:LINES_OF_EVIDENCE],
        in_model_code(
            (
                "Use batches of one size (drop_last=True in the loader), or mark the changing"
                " size before the first forward: torch._dynamo.mark_dynamic(batch, 0)"
            )
            if resized
            else "Keep values that change between steps out of forward, or make them tensors",
            reference=_DYNAMIC,
        ),
        in_model_code(
            "Compile on all ranks when one must: torch.compiler.set_enable_guard_collectives(True)",
            cost="one collective per call of the compiled code; requires torch 2.8 or newer",
            reference="generated/torch.compiler.set_enable_guard_collectives.html",
        ),
        detail="Other ranks wait in their next collective while it compiles, and the job"
        " ends after the group's timeout.",
    )


def _failed(guard: str) -> str:
    return f"a guard failed ({guard})" if guard else ""


@rule("DD842", "compiled-again-in-every-step", Consequence.COST, CompiledFact)
def compiled_in_every_step(recording: Recording) -> Iterator[Draft]:
    """All ranks compile again in every tested step.

    Finds: Reports at least three consecutive steps in which every rank compiled a function again.
    Why: A step takes as long as its compilation. After eight compilations of one function
        (``torch._dynamo.config.recompile_limit``), torch continues without compiling it.
    Remedy: Keep values that change from step to step out of the forward: a counter, a Python number, a size. Turn them
        into tensors, or mark them dynamic.
    See: https://docs.pytorch.org/docs/stable/compile/programming_model.recompilation.html
    """
    again = [steps for number, steps in _by_step(recording).items() if number]
    if len(again) < _IN_A_ROW or not all(step.compiled for steps in again for _, step in steps):
        return
    last = again[-1][0][1].compiled[0]
    yield proved(
        code(last.where),
        f"Every rank recompiles {last.function}{at(last.where)} in each of {len(again)} steps: "
        + (_failed(last.reason) or "another branch each time"),
        tuple(
            Evidence(text=f"step {steps[0][1].step}: {steps[0][1].compiled[0].reason or 'not compiled before'}")
            for steps in again
        ),
        in_model_code(
            "Keep values that change between steps out of forward, make them tensors, or mark their size dynamic",
            reference="compile/programming_model.recompilation.html",
        ),
        detail="After eight compilations of one function, torch continues without compiling it.",
    )


@rule("DD843", "graph-breaks", Consequence.KNOWN, CompiledFact, explained_by=("DD840",))
def breaks(recording: Recording) -> Iterator[Draft]:
    """torch.compile breaks the graph at the same places on all ranks.

    Finds: Reports the lines at which a graph ends before the function does, with torch's reason: ``print``,
        ``.item()``, a branch on a tensor's value, or a call that torch cannot trace.
    Why: Code between two graphs runs as it would without torch.compile, and nothing is fused across it. This is not a
        fault.
    Remedy: Move it out of the forward if the step should be faster. ``fullgraph=True`` turns each break into an error.
    See: https://docs.pytorch.org/docs/stable/compile/programming_model.graph_breaks_index.html
    """
    places = {
        each.where: each.reason
        for fact in facts_by_rank(recording).values()
        for step in fact.steps
        for each in step.breaks
    }
    if not places:
        return
    model = next(iter(facts_by_rank(recording).values())).model
    shown = [short(where) for where in places][:_LINES_IN_A_TITLE]
    yield proved(
        code(*list(places)[:LINES_OF_EVIDENCE]),
        f"torch.compile breaks the graph of {model} at {', '.join(shown)}{and_more(len(places) - len(shown))}",
        tuple(Evidence(text=f"{short(where)}: {reason}") for where, reason in places.items())[:LINES_OF_EVIDENCE],
        in_model_code(
            "Move that code out of forward for a faster step",
            reference="compile/programming_model.graph_breaks_index.html",
        ),
    )


@rule("DD844", "compiling-raises", Consequence.FAILS, CompiledFact, explained_by=("DD771",))
def raises(recording: Recording) -> Iterator[Draft]:
    """A forward raises an exception when torch.compile captures it.

    Finds: Reports an exception in a forward of the compiled model on some or all ranks, with the innermost line of the
        user's code. No code is generated in this test, so the exception does not come from a backend.
    Why: The job fails in the same way. If only some ranks fail, the others wait for them in their next collective.
    Remedy: Fix the cause that the exception names. ``torch.compiler.disable`` excludes a function.
    See: https://docs.pytorch.org/docs/stable/generated/torch.compiler.disable.html
    """
    failed = grouped(
        ((fact.trouble.type, fact.trouble.where, fact.trouble.message), rank)
        for rank, fact in facts_by_rank(recording).items()
        if fact.trouble is not None
    )
    for (kind, where, message), ranks in failed.items():
        yield proved(
            (*_culprits(recording, ranks), *code(where)),
            f"The compiled forward of {facts_by_rank(recording)[ranks[0]].model} raises {kind}{at(where)} on"
            f" {ranks_at(recording, ranks)}",
            Evidence(text=f"rank {ranks[0]}: {kind}: {message}"),
            in_model_code(
                "Fix the cause that the exception reports, or exclude the function: torch.compiler.disable",
                reference="generated/torch.compiler.disable.html",
            ),
            detail=message,
        )
