"""compile on real ranks: models that compile identically have no finding, and each injected difference is reported."""

from functools import partial
from typing import Any

import pytest

from ddp_doctor.features.model.compile.check import CHECK
from ddp_doctor.features.model.compile.facts import CompiledFact
from ddp_doctor.model.recording import Options
from tests.checks.judged_ranks import assert_found, judge_by, only, planted, record
from tests.rank_harness import Ranks, Result

pytestmark = pytest.mark.ranks
judge = partial(judge_by, CHECK)
RANKS = (0, 1, 2)
AS_IT_IS = Options()


def look(ctx: Any, name: str, options: Options) -> CompiledFact:
    ctx.model, ctx.options = f"tests.models.compiled:{name}", options
    ctx.deadline += 600.0  # on a busy machine, fewer steps would fit
    return CHECK.probe(ctx)  # type: ignore[return-value]


def results(ranks: Ranks, name: str, on: tuple[int, ...] = RANKS, options: Options = AS_IT_IS) -> list[Result]:
    return ranks.run(look, name, options, on=on)


def seen(ranks: Ranks, name: str, on: tuple[int, ...] = RANKS, options: Options = AS_IT_IS) -> list[CompiledFact]:
    found = results(ranks, name, on, options)
    assert [one.error for one in found] == [None] * len(on)
    return [one.value for one in found]


@pytest.mark.parametrize("name", ["plain", "dynamic", "in_place", "one_layer", "smaller_everywhere"])
def test_model_that_all_ranks_compile_identically_has_no_finding(ranks, name):
    facts = seen(ranks, name)

    assert judge(record(CHECK, facts)) == []
    assert [(len(fact.steps), fact.steps[0].graphs, fact.by_factory) for fact in facts] == [(4, 1, True)] * 3
    assert [fact.not_offered for fact in facts] == [()] * 3


def test_graph_break_on_all_ranks_is_info_with_its_line_and_reason(ranks):
    finding = only(judge(record(CHECK, seen(ranks, "with_a_graph_break"))), "DD843")

    assert finding.severity.value == "info"
    assert "tests.models.compiled:with_a_graph_break at compiled.py:" in finding.title
    assert "print" in finding.evidence[0].text


@planted(
    ("a branch by rank", "branch", "DD840", [1, None], "compiles different graphs", "mul(", "compiled.py:"),
    ("a type", "cast", "DD840", [1, None], "double(", " -> float64 at compiled.py:", "rank 0 has view("),
    ("a configuration", "heads", "DD840", [1, None], "8, -1) -> float32", "but rank 0 has view(", "4, -1)"),
    ("a graph break", "break_on_one_rank", "DD840", [1, None], "a graph break (", "rank 0 has no more graph breaks"),
    ("a smaller last batch", "last_batch", "DD841", [1], "its batch changed from [0] float32 4x8 to [0] float32 3x8"),
    ("not compiled", "on_some_ranks", "DD840", [1], "is compiled on rank 1 (node1), unlike on other ranks"),
    ("an exception", "of_one_size", "DD844", [1, None], "error, proved", "Error at compiled.py:"),
)
def test_injected_difference_is_reported_for_its_rank_only(ranks, scenario, code, ranks_blamed, words):
    assert_found(judge(record(CHECK, seen(ranks, scenario))), code, ranks_blamed, words)


def test_difference_between_two_ranks_blames_neither(ranks):
    finding = only(judge(record(CHECK, seen(ranks, "branch", on=(0, 1)))), "DD840")

    assert [culprit.kind for culprit in finding.culprits] == ["file"]


def test_step_counter_is_recompiled_in_every_step(ranks):
    finding = only(judge(record(CHECK, seen(ranks, "counter"))), "DD842")

    assert "in each of 3 steps: a guard failed (" in finding.title
    assert "calls == " in finding.title


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("not_compiled", "does not use torch.compile; add --compile to test it compiled"),
        ("without_batches", "does not return make_batch"),
        ("switched_off", "did not compile any part of"),
    ],
)
def test_failed_capture_gives_a_reason_and_no_fact(ranks, name, why):
    assert [why in (one.error or "") for one in results(ranks, name)] == [True] * 3


def test_uncompiled_model_is_checked_with_the_option(ranks):
    facts = seen(ranks, "not_compiled", options=Options(compile=True))

    assert judge(record(CHECK, facts)) == []
    assert [(fact.steps[0].graphs, fact.by_factory) for fact in facts] == [(1, False)] * 3


def test_factory_with_two_batches_is_checked_with_two(ranks):
    assert [(len(fact.steps), fact.ended) for fact in seen(ranks, "two_batches")] == [
        (2, "make_batch(2) returns none")
    ] * 3


def test_check_with_only_one_step_has_not_passed(ranks):
    facts = [
        fact.model_copy(update={"steps": fact.steps[:1], "ended": "step 0 took 40 s"}) for fact in seen(ranks, "plain")
    ]

    assert CHECK.untested(record(CHECK, facts)) == "one step alone was looked at: step 0 took 40 s"
