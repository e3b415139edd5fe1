"""Computed estimates compared with numbers worked out by hand, traced estimates, and messages without either."""

import pytest

from ddp_doctor.features.model.fit.facts import Estimate, FitFact
from ddp_doctor.features.model.fit.probing import peaks, subject, trace
from ddp_doctor.features.model.fit.probing.estimate import estimate
from ddp_doctor.features.model.fit.probing.peaks import Job, Parameter, Step
from ddp_doctor.features.model.user_model.probing.user_code import Misuse
from ddp_doctor.knowledge.ddp.strategies import BY_NAME
from ddp_doctor.model.fact import Misused
from tests.rank_harness import Ranks

#: Two layers of 1,000 by 1,000 without a bias, 4 MB each; the second is a unit.
_LAYER = Parameter((1000, 1000), 4, 4)
MB = 1_000_000

#: transformers is large, so only `make test-ranks` installs it.
NEEDS_TRANSFORMERS = pytest.mark.ranks


def _of(name: str, *, ranks: int = 4, ranks_per_node: int = 4, device: str = "cuda", state: int = 0) -> Estimate:
    class Layer:
        requires_grad = True

        def numel(self) -> int:
            return MB

        def element_size(self) -> int:
            return 4

    job = Job([[_LAYER], [_LAYER]], 0, ranks, ranks_per_node, device)
    return peaks.estimate(BY_NAME[name], False, job, trace.of_parameters([[Layer()], [Layer()]]), Step(state))


def test_ddp_holds_gradients_and_buckets_but_only_buckets_with_the_view():
    plain, view = _of("ddp", state=16 * MB), _of("ddp-bucket-view", state=16 * MB)

    assert (plain.parameters, plain.gradients, plain.buckets, plain.optimizer) == (8 * MB, 8 * MB, 8 * MB, 16 * MB)
    assert (view.parameters, view.gradients, view.buckets, view.optimizer) == (8 * MB, 0, 8 * MB, 16 * MB)
    assert view.peak_bytes == 36 * MB  # and one layer's gradient, until it is copied


def test_broadcast_copies_of_ddp_are_the_peak_without_state_and_gradients():
    job = Job([[Parameter((1000, 1000), 4, 4, trainable=False)]], 0, 2, 2, "cuda")

    found = peaks.estimate(BY_NAME["ddp"], False, job, [], Step())

    assert (found.moment, found.peak_bytes) == ("wrap", 8 * MB)


def test_fsdp_rank_holds_its_shard_and_two_units_and_a_gradient_unsharded():
    found = _of("zero3", state=4 * MB)

    # In the unit's backward: its parameter, the root's, which is never resharded, and its gradient.
    assert (found.parameters, found.optimizer, found.moment) == (2 * MB, 4 * MB, "backward")
    assert found.unsharded == 3 * 4 * MB


def test_rows_that_do_not_divide_evenly_are_padded():
    assert Parameter((10, 3), 4, 4).elements(4) == 3 * 3
    assert Parameter((), 4, 4).elements(4) == 1


def test_rank_sends_the_bytes_of_ring_collectives():
    assert _of("ddp").sent_bytes == 2 * 8 * MB * 3 // 4
    assert _of("zero2").sent_bytes == (8 + 8) * MB * 3 // 4
    assert _of("zero3").sent_bytes == (16 + 8) * MB * 3 // 4
    assert _of("hsdp", ranks=8).sent_bytes == (16 + 8) * MB * 3 // 4 + 2 * 2 * MB // 2


def test_zero_1_is_estimated_for_the_fullest_rank():
    sizes = [Parameter((size,), 4, 4) for size in (5, 9, 3, 2)]

    assert sum(parameter.elements() for parameter in peaks.zero1_shares(sizes, 2)) == 10


def _row(fact: FitFact, strategy: str, checkpointing: bool = False) -> Estimate:
    return next(row for row in fact.estimates if (row.strategy, row.checkpointing) == (strategy, checkpointing))


def test_frozen_parameters_have_no_gradient_and_no_state():
    fact = estimate("tests.models.fit:lora", ranks=2, ranks_per_node=2, device="cpu")

    trainable = 8 * 2 * 8 * 1280
    assert _row(fact, "ddp").sent_bytes == 4 * trainable
    assert _row(fact, "ddp").parameters == 4 * (trainable + 8 * (1280 * 1280 + 1280))
    found = _row(fact, "zero2")
    assert found.optimizer == pytest.approx(trainable * 4, rel=0.01)  # two numbers for each parameter of a half


def test_optimizer_on_gpus_needs_temporaries_for_all_parameters_at_once():
    on = {
        device: _row(estimate("tests.models.unfit:alone", ranks=2, ranks_per_node=2, device=device), "ddp")
        for device in ("cpu", "cuda")
    }

    assert on["cuda"].temporaries == (64 * 64 + 64) * 4
    assert on["cpu"].temporaries == 2 * 64 * 64 * 4  # only for the largest parameter


def test_trace_of_one_repeated_layer_counts_for_all():
    found = subject.of("tests.models.fit:tied")
    units = subject.units_of(found.model, ())
    own = subject.own_parameters(found.model, units)
    job = Job([[Parameter(tuple(p.shape), 4, 4) for p in unit] for unit in own], 0, 2, 2, "cpu")

    with found.mode:
        for how in (trace.How(), trace.How(checkpointing=True)):
            once = trace.run(found.model, found.batch(), units, own, how)
            all_of_them = trace._run(found.model, found.batch(), units, own, how)
            assert once == all_of_them
            assert peaks.estimate(BY_NAME["zero3"], False, job, once, Step()).activations > 0
    assert len(units) == len(found.model.blocks) == 6


def test_repeated_layers_that_grow_their_input_are_each_traced():
    fact = estimate("tests.models.unfit:grows", ranks=2, ranks_per_node=2)

    images = sum(16 * (4 << layer) ** 2 * 4 for layer in range(8))
    assert _row(fact, "zero3").activations >= images


def test_complex_parameters_have_their_full_size():
    fact = estimate("tests.models.unfit:complex_numbers", ranks=2, ranks_per_node=2)

    assert _row(fact, "ddp").optimizer == pytest.approx(2 * (64 * 64 + 64) * 16, rel=0.01)


def test_batch_without_a_tensor_is_accepted():
    fact = estimate("tests.models.unfit:of_a_number", ranks=2, ranks_per_node=2)

    assert (fact.batch, fact.left_out[1:]) == (None, ())
    assert _row(fact, "ddp").activations > 0


@NEEDS_TRANSFORMERS
def test_transformers_model_is_estimated_without_weights():
    fact = estimate(
        "hf:llama,hidden_size=64,num_hidden_layers=5,intermediate_size=128,vocab_size=500",
        ranks=8,
        ranks_per_node=4,
        batch=2,
        sequence=64,
    )

    assert (fact.batch, fact.tokens, fact.left_out) == (2, 64, ())
    assert (fact.units, fact.optimizer) == ("5 LlamaDecoderLayer", "AdamW (none was given)")
    assert {row.strategy for row in fact.estimates} == set(BY_NAME)
    assert all(row.sample_bytes > 0 for row in fact.estimates)
    assert _row(fact, "zero3-offload").host_bytes > 0
    assert _row(fact, "zero3-offload").parameters == 8  # a buffer of two numbers, which is not offloaded


@NEEDS_TRANSFORMERS
@pytest.mark.parametrize(
    ("name", "asked", "tokens"),
    [
        ("gpt2,n_embd=8,n_head=2,n_layer=1", None, 1024),
        ("gpt2,n_embd=8,n_head=2,n_layer=1,n_positions=32", None, 32),
        ("gpt2,n_embd=8,n_head=2,n_layer=1", 16, 16),
        ("llama,hidden_size=8,num_attention_heads=2,num_hidden_layers=1,max_position_embeddings=4096", None, 2048),
        ("bloom,hidden_size=8,n_head=2,n_layer=1", None, 2048),
    ],
)
def test_assumed_sample_length_is_limited_by_the_model(name: str, asked: int | None, tokens: int):
    batch = subject.of(f"hf:{name}", 1, asked).given
    assert subject.tokens_of(batch) == tokens


@NEEDS_TRANSFORMERS
def test_sample_longer_than_the_model_allows_is_refused():
    with pytest.raises(Misuse, match="--seq 33 exceeds the 32 positions of hf:gpt2"):
        subject.of("hf:gpt2,n_embd=8,n_head=2,n_layer=1,n_positions=32", 1, 33)


def test_bfloat16_takes_half_of_the_memory():
    whole, half = (
        estimate("tests.models.fit:mlp", ranks=2, ranks_per_node=2, precision=precision)
        for precision in ("fp32", "bf16")
    )

    assert _row(half, "ddp").parameters * 2 == _row(whole, "ddp").parameters
    assert _row(half, "zero3").peak_bytes == pytest.approx(_row(whole, "zero3").peak_bytes / 2, rel=0.02)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests.models.unfit:huge_in_numpy", "more than 16 GiB of real memory at .*unfit.py:"),
        ("tests.models.unfit:downloads", "tries to connect to example.org"),
        ("tests.models.unfit:nowhere", "has no function 'nowhere'"),
        ("tests.models.unfit:frozen", "without trainable parameters"),
        ("tests.models.unfit:lazy", "LazyLinear has no size yet"),
        ("tests.models.unfit:no_samples", "returns an empty batch"),
        ("tests.models.unfit:no_optimizer", "optimizer.parameters. returns type int; it must return a torch optimizer"),
        pytest.param("hf:nope", "unknown transformers model 'nope'", marks=NEEDS_TRANSFORMERS),
        pytest.param("hf:llama,layers=3", "unknown llama setting 'layers'", marks=NEEDS_TRANSFORMERS),
        pytest.param("hf:no/such/config.json", "cannot read the configuration", marks=NEEDS_TRANSFORMERS),
    ],
)
def test_model_that_cannot_be_estimated_is_refused_with_a_reason(name: str, said: str):
    with pytest.raises(Misused, match=said):
        estimate(name, ranks=2, ranks_per_node=2)


@pytest.mark.ranks
def test_model_sharded_by_its_factory_is_refused_with_a_reason():
    with Ranks(2) as ranks:
        said = ranks.run(_refused)

    assert all("returns a sharded model" in f"{each.value}" for each in said)


def _refused(_ctx: object) -> str:
    try:
        estimate("tests.models.unfit:sharded", ranks=2, ranks_per_node=2)
    except Misused as misused:
        return str(misused)
    return ""


def test_weights_of_400_gb_are_estimated_without_allocating_them():
    fact = estimate("tests.models.unfit:huge", ranks=8, ranks_per_node=8)

    assert _row(fact, "ddp").parameters == 400_000_000_000


@pytest.mark.parametrize("factory", ["needs_values", "converted"])
def test_factory_that_reads_values_or_converts_its_model_is_estimated(factory: str):
    fact = estimate(f"tests.models.unfit:{factory}", ranks=2, ranks_per_node=2)

    assert (fact.trouble, fact.left_out[1:]) == (None, ())
    assert all(row.activations > 0 for row in fact.estimates if row.moment == "backward")


def test_tied_weights_stay_tied_after_conversion():
    fact = estimate("tests.models.unfit:converted", ranks=2, ranks_per_node=2)

    assert _row(fact, "ddp").parameters == 2 * (64 * 64 + 128)


def test_untraceable_kernel_omits_only_activations():
    fact = estimate("tests.models.unfit:kernel", ranks=2, ranks_per_node=2)

    (said,) = [text for text in fact.left_out if text.startswith("activations")]
    assert "unfit::of_a_gpu" in said
    assert "unfit.py" in said
    assert all(row.parameters + row.host_bytes > 0 for row in fact.estimates)


def test_numpy_in_a_forward_omits_activations_without_an_error():
    fact = estimate("tests.models.unfit:leaves_torch", ranks=2, ranks_per_node=2)

    assert fact.trouble is None
    assert any(text.startswith("activations") and "numpy" in text for text in fact.left_out)


def test_loss_without_a_gradient_is_reported():
    fact = estimate("tests.models.unfit:no_gradient", ranks=2, ranks_per_node=2)

    assert fact.trouble is not None
    assert "does not require grad" in fact.trouble.message


def test_layers_called_twice_are_unsharded_together_in_the_backward():
    fact = estimate("tests.models.unfit:twice", ranks=2, ranks_per_node=2, device="cpu")

    layer = (512 * 512 + 512) * 4
    found = _row(fact, "zero3")
    # Both layers are gathered, and both have full gradients; autograd adds the gradients of the two uses.
    assert (found.moment, found.unsharded + found.temporaries >= 4 * layer) == ("backward", True)


def test_error_in_user_code_is_not_mistaken_for_an_untraceable_model():
    fact = estimate("tests.models.unfit:wrong_shape", ranks=2, ranks_per_node=2)

    assert fact.estimates == ()
    assert fact.trouble is not None
    assert fact.trouble.phase == "forward"
    assert "[4, 64] X [32, 32]" in fact.trouble.message


def test_torch_without_fsdp2_omits_its_strategies(monkeypatch):
    import torch.distributed.fsdp

    monkeypatch.delattr(torch.distributed.fsdp, "fully_shard")
    fact = estimate("tests.models.unfit:alone", ranks=2, ranks_per_node=2)

    assert {row.strategy for row in fact.estimates} == {"ddp", "ddp-bucket-view", "zero1"}
    assert any("torch 2.6" in text for text in fact.left_out)
