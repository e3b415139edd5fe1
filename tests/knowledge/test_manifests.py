"""Manifests of models: read from real modules, and compared over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.ddp.manifests import Difference, Manifest, Tensor, compare, kept, restored
from ddp_doctor.probing import module_manifest

FIRST = Tensor(name="first.weight", shape=(4, 3), requires_grad=True)
BIAS = Tensor(name="first.bias", shape=(4,), requires_grad=True)
LAST = Tensor(name="last.weight", shape=(4, 3), requires_grad=True)
MEAN = Tensor(name="norm.running_mean", shape=(4,))
USUAL = Manifest(parameters=(FIRST, BIAS, LAST), buffers=(MEAN,))


def having(*parameters: Tensor) -> Manifest:
    return USUAL.model_copy(update={"parameters": parameters})


def changed(tensor: Tensor, **fields: Any) -> Tensor:
    return tensor.model_copy(update=fields)


def only(differences: tuple[Difference, ...]) -> Difference:
    assert len(differences) == 1, differences
    return differences[0]


def of_four(odd: Manifest, rank: int = 2) -> Difference:
    return only(compare({other: odd if other == rank else USUAL for other in range(4)}))


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_equal_manifests_have_no_differences(ranks: int):
    assert compare(dict.fromkeys(range(ranks), USUAL)) == ()


@pytest.mark.parametrize(
    ("odd", "kind", "name", "here", "there"),
    [
        (having(FIRST, BIAS), "missing", "last.weight", "none", "there"),
        (having(FIRST, changed(BIAS, shape=(5,)), LAST), "shape", "first.bias", "(5)", "(4)"),
        (having(FIRST, changed(BIAS, shape=None), LAST), "shape", "first.bias", "none yet", "(4)"),
        (having(FIRST, BIAS, changed(LAST, dtype="bfloat16")), "dtype", "last.weight", "bfloat16", "float32"),
        (having(changed(FIRST, requires_grad=False), BIAS, LAST), "requires_grad", "first.weight", "False", "True"),
        (having(FIRST, changed(BIAS, device="cuda"), LAST), "device", "first.bias", "cuda", "cpu"),
        (having(changed(FIRST, strides=(1, 4)), BIAS, LAST), "strides", "first.weight", "strides (1, 4)", "contiguous"),
        (
            having(FIRST, BIAS, changed(LAST, tied_to="first.weight")),
            "tied",
            "last.weight",
            "first.weight",
            "a tensor of its own",
        ),
        (having(LAST, BIAS, FIRST), "order", "first.weight", "number 0 is last.weight", "number 0 is first.weight"),
        (having(FIRST, BIAS, changed(LAST, name="end.weight")), "name", "last.weight", "end.weight", "last.weight"),
        (having(FIRST, BIAS, changed(LAST, ignored=True)), "ignored", "last.weight", "True", "False"),
    ],
)
def test_odd_rank_of_four_is_reported_with_the_difference(odd: Manifest, kind: str, name: str, here: str, there: str):
    found = of_four(odd)

    assert (found.what, found.kind, found.names, found.count) == ("parameter", kind, (name,), 1)
    assert (found.ranks, found.peer, found.sure) == ((2,), 0, True)
    assert (found.here, found.there) == (here, there)


def test_rank_0_is_the_odd_one_if_all_others_agree():
    found = of_four(having(FIRST, BIAS), rank=0)

    assert (found.ranks, found.peer, found.sure) == ((0,), 1, True)


def test_an_extra_head_is_one_difference_with_all_its_names():
    head = [Tensor(name=f"head.{number}", shape=(2,), requires_grad=True) for number in range(20)]
    found = of_four(having(FIRST, BIAS, LAST, *head))

    assert (found.kind, found.count, found.names[0], len(found.names)) == ("extra", 20, "head.0", 8)


def test_odd_one_of_two_ranks_is_unknown():
    found = only(compare({0: USUAL, 1: having(FIRST, BIAS)}))

    assert (found.ranks, found.peer, found.sure) == ((1,), 0, False)


def test_two_against_two_is_unsure():
    odd = having(FIRST, BIAS)
    found = only(compare({0: USUAL, 1: odd, 2: USUAL, 3: odd}))

    assert (found.ranks, found.peer, found.sure) == ((1, 3), 0, False)


def test_two_ranks_with_different_faults_are_both_reported():
    frozen = having(changed(FIRST, requires_grad=False), BIAS, LAST)
    short = having(FIRST, BIAS)
    found = compare({0: USUAL, 1: frozen, 2: short, 3: USUAL})

    assert {(one.kind, one.ranks, one.sure) for one in found} == {
        ("requires_grad", (1,), True),
        ("missing", (2,), True),
    }


def test_missing_buffer_is_reported_as_a_buffer():
    found = of_four(Manifest(parameters=USUAL.parameters))

    assert (found.what, found.kind, found.names) == ("buffer", "missing", ("norm.running_mean",))


def test_missing_name_is_not_a_different_order():
    assert of_four(having(BIAS, LAST)).kind == "missing"


_tensors = st.builds(
    Tensor,
    name=st.sampled_from("abcd"),
    shape=st.sampled_from([(), (1,), (2, 3), None]),
    dtype=st.sampled_from(["float32", "int64"]),
)
_lists = st.lists(_tensors, max_size=4, unique_by=lambda tensor: tensor.name).map(tuple)
_manifests = st.builds(Manifest, parameters=_lists, buffers=_lists)


@given(st.lists(_manifests, min_size=1, max_size=5))
def test_only_equal_manifests_have_no_differences(manifests: list[Manifest]):
    by_rank = dict(enumerate(manifests))
    found = compare(by_rank)

    assert bool(found) == (len(set(manifests)) > 1)
    for one in found:
        assert one.peer not in one.ranks
        assert not one.sure or 2 * len(one.ranks) < len(manifests)


@given(st.lists(_manifests, min_size=1, max_size=5))
def test_facts_of_the_ranks_keep_the_data_for_the_comparison(manifests: list[Manifest]):
    by_rank = {rank + 3: manifest for rank, manifest in enumerate(manifests)}
    back = restored({rank: kept(rank, by_rank) for rank in by_rank})

    assert compare(back) == compare(by_rank)
    assert back in ({}, by_rank)


@given(_manifests)
def test_manifest_survives_serialization(manifest: Manifest):
    assert Manifest.model_validate_json(manifest.text()) == manifest


# Read from modules


@pytest.fixture(scope="module")
def many_kinds() -> Manifest:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(10, 4, sparse=True)
            self.head = torch.nn.Linear(4, 10)
            self.head.weight = self.words.weight
            self.norm = torch.nn.BatchNorm1d(4)
            self.conv = torch.nn.Conv2d(3, 4, 3)
            self.lazy = torch.nn.LazyLinear(3)
            self.thin = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16), requires_grad=False)
            self.flat = torch.nn.Parameter(self.thin.data.view(1, 2), requires_grad=False)
            self.far = torch.nn.Linear(2, 2, device="meta")
            self.register_buffer("step", torch.zeros((), dtype=torch.int64), persistent=False)
            self.register_buffer("nothing", None)

    model: Any = Model()
    model.conv.to(memory_format=torch.channels_last)
    model._ddp_params_and_buffers_to_ignore = ["norm.running_var"]
    return module_manifest.read(model)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("words.weight", {"shape": (10, 4), "requires_grad": True, "sparse_grad": True, "tied_to": None}),
        ("head.weight", {"tied_to": "words.weight", "memory_of": None}),
        ("conv.weight", {"strides": (27, 1, 9, 3), "shape": (4, 3, 3, 3)}),
        ("conv.bias", {"strides": None}),
        ("lazy.weight", {"shape": None}),
        ("thin", {"dtype": "bfloat16", "requires_grad": False}),
        ("flat", {"memory_of": "thin", "tied_to": None}),
        ("far.weight", {"device": "meta", "memory_of": None}),
        ("far.bias", {"device": "meta", "memory_of": None}),
        ("step", {"shape": (), "dtype": "int64", "persistent": False}),
        ("norm.running_mean", {"persistent": True, "ignored": False}),
        ("norm.running_var", {"ignored": True}),
    ],
)
def test_module_is_read_correctly(many_kinds: Manifest, name: str, fields: dict[str, Any]):
    by_name = {one.name: one for one in (*many_kinds.parameters, *many_kinds.buffers)}

    assert {field: getattr(by_name[name], field) for field in fields} == fields


def test_parameters_keep_the_order_of_the_module(many_kinds: Manifest):
    assert [one.name for one in many_kinds.parameters][:3] == ["thin", "flat", "words.weight"]
    assert "nothing" not in {one.name for one in many_kinds.buffers}


# Between ranks


class Told:
    """The part of a RankContext that an exchange needs; the ranks send one after the other."""

    def __init__(self, place: int, ranks: tuple[int, ...], said: dict[str, list[str]]) -> None:
        self.group_rank, self.ranks, self._said = place, ranks, said
        self.sent: list[str] = []

    def step(self, name: str, detail: str = "") -> Any:
        from contextlib import nullcontext

        return nullcontext()

    def exchange(self, name: str, text: str) -> tuple[str, ...]:
        self.sent.append(text)
        return tuple(self._said[name])


@pytest.fixture
def told() -> Callable[[list[Manifest], int], tuple[dict[int, Manifest], list[str]]]:
    def ask(manifests: list[Manifest], place: int) -> tuple[dict[int, Manifest], list[str]]:
        from ddp_doctor.knowledge.ddp.manifests import digest

        digests = [digest(one) for one in manifests]
        first = [digests.index(one) == index for index, one in enumerate(digests)]
        texts = [one.text() if speaks else "" for one, speaks in zip(manifests, first, strict=True)]
        ctx: Any = Told(place, tuple(range(5, 5 + len(manifests))), {"manifest-digest": digests, "manifest": texts})
        return module_manifest.of_all_ranks(ctx, manifests[place]), ctx.sent

    return ask


def test_equal_manifests_are_exchanged_as_digests(told: Any):
    by_rank, sent = told([USUAL] * 3, 1)

    assert by_rank == {5: USUAL, 6: USUAL, 7: USUAL}
    assert [len(text) for text in sent] == [64]


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_manifest_is_sent_once_if_ranks_differ(told: Any, place: int):
    odd = having(FIRST)
    by_rank, sent = told([USUAL, USUAL, odd, odd], place)

    assert by_rank == {5: USUAL, 6: USUAL, 7: odd, 8: odd}
    assert bool(sent[1]) == (place in (0, 2))
