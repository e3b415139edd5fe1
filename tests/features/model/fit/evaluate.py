"""Predicted against measured memory: ``python -m tests.features.model.fit.evaluate [MODEL …] [--ranks N]``.

The measured value is the peak that ``fit --measure`` reports, on real ranks on the CPU, from before the model is made
to the end of the last step. Next to it is the growth of the process's resident memory.
"""

import argparse
import ctypes
import gc
import statistics
from typing import Any, NamedTuple

from ddp_doctor.features.model.fit.facts import FitFact, Precision
from tests.rank_harness import Ranks

MODELS = ("mlp", "cnn", "encoder", "llama", "tied", "lora")
STRATEGIES = ("ddp", "ddp-bucket-view", "zero2", "zero3")
MIB = 2**20


class Case(NamedTuple):
    model: str
    strategy: str
    checkpointing: bool = False
    precision: Precision = "fp32"
    ranks: int = 2

    @property
    def factory(self) -> str:
        return f"tests.models.fit:{self.model}"

    @property
    def ranks_per_node(self) -> int:
        """The ranks per node: two of four, so that HSDP has something to replicate."""
        return max(2, self.ranks // 2)


class Outcome(NamedTuple):
    case: Case
    predicted: int
    measured: int
    resident: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def row(self) -> str:
        sizes = (
            f"{self.predicted / MIB:.1f} | {self.measured / MIB:.1f} | {self.error:+.1%} | {self.resident / MIB:.0f}"
        )
        return f"| {self.case.model} | {self.case.strategy} | {sizes} |"


def predicted(_ctx: Any, case: Case) -> FitFact:
    from ddp_doctor.features.model.fit.probing.estimate import estimate

    return estimate(
        case.factory, ranks=case.ranks, ranks_per_node=case.ranks_per_node, precision=case.precision, device="cpu"
    )


def measured(_ctx: Any, case: Case, steps: int) -> tuple[int, int]:
    import psutil
    import torch
    from torch.profiler import ProfilerActivity, profile

    from ddp_doctor.features.model.fit.probing import subject
    from ddp_doctor.features.model.fit.probing.measure import allocated
    from ddp_doctor.features.model.fit.probing.strategies import wrap
    from ddp_doctor.features.model.user_model.probing import user_code
    from ddp_doctor.features.model.user_model.probing.batches import Batch

    gc.enable()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory left by earlier cases would hide the growth in this one
    factory = user_code.find(case.factory)
    before = psutil.Process().memory_info().rss
    highest = before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loaded = user_code.made(case.factory, factory)
        form = user_code.form_of(loaded)
        model, optimizer = wrap(
            loaded.model,
            case.strategy,
            units=subject.units_of(loaded.model, loaded.units),
            checkpointing=case.checkpointing,
            precision=case.precision,
            optimizer=loaded.optimizer or torch.optim.AdamW,
            ranks_per_node=case.ranks_per_node,
            options=loaded.options,
        )
        assert loaded.make_batch is not None
        for step in range(steps):
            batch = Batch(loaded.make_batch(step), form).changed(lambda leaf: leaf)
            highest = max(highest, _step(model, optimizer, batch))
    return allocated(profiler), highest - before


def _step(model: Any, optimizer: Any, batch: Any) -> int:
    import psutil

    output = batch.forward(model)
    loss = batch.loss(output)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return int(psutil.Process().memory_info().rss)


def evaluate(cases: list[Case], steps: int = 3) -> list[Outcome]:
    facts: dict[tuple[str, str], FitFact] = {}
    outcomes = []
    preload = [__name__, "tests.models.fit", "torch.distributed.fsdp"]
    if any(case.model == "llama" for case in cases):
        preload.append("transformers.models.llama.modeling_llama")
    with Ranks(cases[0].ranks, preload=preload) as ranks:
        for case in cases:
            if (case.model, case.precision) not in facts:
                facts[case.model, case.precision] = ranks.facts(predicted, case, on=(0,))[0]
            fact = facts[case.model, case.precision]
            assert fact.trouble is None, fact.trouble
            found = {(estimate.strategy, estimate.checkpointing): estimate.peak_bytes for estimate in fact.estimates}
            of_ranks = ranks.facts(measured, case, steps)
            fullest = max if case.strategy == "zero1" else min  # ZeRO-1's ranks keep unequal parts
            peak, resident = fullest(of_ranks)
            outcomes.append(Outcome(case, found[case.strategy, case.checkpointing], peak, resident))
            print(outcomes[-1].row, flush=True)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--checkpointing", action="store_true")
    given = parser.parse_args()
    print("| model | strategy | predicted MiB | measured MiB | error | resident MiB |")
    print("|---|---|---|---|---|---|")
    outcomes = evaluate(
        [
            Case(model, strategy, given.checkpointing, given.precision, given.ranks)
            for model in given.models
            for strategy in given.strategies.split(",")
        ]
    )
    errors = [abs(outcome.error) for outcome in outcomes]
    print(f"\nmedian {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
