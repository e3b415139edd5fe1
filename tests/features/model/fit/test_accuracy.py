"""Estimates against real ranks: within 10% each, 5% in the median. evaluate.py compares every pair."""

import statistics
import subprocess
import sys

import pytest

from tests.features.model.fit.evaluate import MODELS, STRATEGIES, Case, evaluate

#: The second step has the optimizer's state and DDP's rebuilt buckets. Later steps have the same peak.
STEPS = 2


@pytest.mark.ranks
@pytest.mark.timeout(1200)
def test_estimates_match_the_memory_of_real_ranks(record_property):
    usual = [Case(model, STRATEGIES[at % len(STRATEGIES)]) for at, model in enumerate(MODELS)]
    special = [Case("tied", "zero3", checkpointing=True), Case("encoder", "zero3", precision="amp")]
    outcomes = evaluate([*usual, *special], STEPS)

    errors = [abs(outcome.error) for outcome in outcomes]
    record_property("median_error", median := statistics.median(errors[: len(usual)]))
    assert max(errors) <= 0.1, outcomes
    assert median <= 0.05


@pytest.mark.ranks
@pytest.mark.timeout(600)
def test_estimates_for_four_ranks_match_their_memory():
    outcomes = evaluate([Case("lora", strategy, ranks=4) for strategy in ("zero1", "zero3", "hsdp")], STEPS)

    assert all(abs(outcome.error) <= 0.1 for outcome in outcomes), outcomes


#: The limit of 20 s, in iterations of an empty loop timed in the same process, because shared machines are slow at
#: times: ten million take 0.2 s. The estimate takes a third of the limit.
MOST_TURNS = 1e9


@pytest.mark.lab
def test_seven_billion_parameters_are_estimated_within_20_s_and_1_gib():
    code = """
import resource, time
from ddp_doctor.features.model.fit.probing.estimate import estimate
fact = estimate("hf:llama", ranks=8, ranks_per_node=8, batch=1, sequence=2048)
parameters = next(row.parameters for row in fact.estimates if row.strategy == "ddp")
seconds = time.process_time()
for _ in range(10_000_000):
    pass
loop_s = time.process_time() - seconds
print(parameters / 4, seconds / loop_s * 1e7, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    elements, turns, kib = map(float, done.stdout.split())

    assert elements > 6.7e9
    assert turns <= MOST_TURNS
    assert kib <= 2**20
