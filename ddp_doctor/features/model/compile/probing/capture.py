"""The graphs that torch.compile captures of the user's model, on each rank separately, compared between the ranks."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from ddp_doctor.features.model.compile.facts import CompiledFact, CompiledStep
from ddp_doctor.features.model.compile.probing.dynamo import Capture, Step, is_compiled
from ddp_doctor.features.model.user_model.facts import Parting
from ddp_doctor.features.model.user_model.names import MOST_NAMES
from ddp_doctor.features.model.user_model.probing import batches, passes
from ddp_doctor.features.model.user_model.probing.batches import Batch
from ddp_doctor.features.model.user_model.probing.probe import ModelProbe, Stopped
from ddp_doctor.features.model.user_model.probing.user_code import SEED, Loaded, attempt, generators_kept, seed
from ddp_doctor.model.fact import Failed, Skip

#: The first two steps are those with which the user_model check runs the model.
_STEPS = 4


class CompileProbe(ModelProbe):
    """The work of torch.compile on the model, step by step, with each rank's own batches."""

    _captured = False  # a graph, on any rank

    def capture(self) -> CompiledFact:
        """Return the graphs of all steps. Raises Skip if nothing is compiled, and Failed."""
        ctx = self.ctx
        with generators_kept(ctx.device):
            try:
                loaded = self.load()
                if self.sharded:
                    raise Skip(f"{ctx.model} is sharded by fully_shard, which this check does not support")
                self.require_alike(loaded)
            except Stopped:
                raise Skip(f"{ctx.model} does not work; the user_model check reports why") from None
            by_factory = is_compiled(loaded.model)
            with ctx.step("compare_outcomes", "compiled"):
                compiled = ctx.exchange("compiled", f"{by_factory or ctx.options.compile}")
            if "True" not in compiled:
                raise Skip(f"{ctx.model} does not use torch.compile; add --compile to test it compiled")
            if loaded.make_batch is None:
                raise Skip(f"{ctx.model} does not return make_batch, so the inputs are unknown")
            capture = Capture()
            steps: list[CompiledStep] = []
            try:
                with suppress(Stopped):  # a rank's trouble ends the steps
                    steps.extend(self._steps(loaded, capture, by_factory))
            finally:
                capture.end()
        if steps and not self._captured:
            raise Failed(
                f"torch.compile did not compile any part of {ctx.model}: it is disabled, or it skips this kind of model"
                " (for example, a torch.nn layer compiled with .compile())"
            )
        return CompiledFact(
            model=ctx.model,
            world_size=ctx.world_size,
            by_factory=by_factory,
            steps=tuple(steps),
            ended=self.seen.get("ended", ""),
            trouble=self.seen.get("trouble"),
            not_offered=capture.not_offered,
        )

    def _steps(self, loaded: Loaded, capture: Capture, by_factory: bool) -> Iterator[CompiledStep]:
        import torch

        model: Any = loaded.model
        model.train()
        compiles = self.ctx.options.compile and not by_factory
        run = torch.compile(model, backend=capture.backend) if compiles else model
        for number in range(_STEPS):
            batch = self._batch(loaded, number)
            if batch is None:
                return
            seed(SEED + number)
            began = self.ctx.clock()
            with capture.step() as step:
                _, trouble = attempt("forward", partial(step.run, batch.forward, run))
            if trouble and not trouble.where:
                trouble = trouble.model_copy(update={"where": step.raised_at})
            self._took_s.append(self.ctx.clock() - began)
            self._settle("forward", trouble, f"capture {number}")
            yield self._compared(number, batch, step)

    def _batch(self, loaded: Loaded, number: int) -> Batch | None:
        """Return the batch of a step, or None on all ranks if any rank has no batch or no time."""
        made, trouble = attempt("make_batch", partial(batches.make, self.ctx, loaded, number))
        why = "" if trouble is None else f"make_batch({number}) returns none"
        if max(self._took_s, default=0.0) > self.ctx.remaining():  # it may compile again
            why = f"step {number - 1} took {self._took_s[-1]:.0f} s"
        with self.ctx.step("compare_outcomes", f"batch {number}"):
            answers = self.ctx.exchange(f"batch {number}", why)
        self.seen["ended"] = next(filter(None, answers), "")
        return None if made is None or self.seen["ended"] else made[0]

    def _compared(self, number: int, batch: Batch, step: Step) -> CompiledStep:
        shapes = ", ".join(
            f"{place} {str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape)) or 'scalar'}"
            for place, tensor in batch.tensors()
        )
        return CompiledStep(
            step=number,
            batch=shapes,
            graphs=len(step.graphs),
            breaks=tuple(step.breaks[:MOST_NAMES]),
            compiled=tuple(step.compiled[:MOST_NAMES]),
            parting=self._parting(number, batch, shapes, step),
        )

    def _parting(self, number: int, batch: Batch, shapes: str, step: Step) -> Parting | None:
        """Return the difference from most ranks that captured anything; without sizes if their batches may differ."""
        import torch

        ctx = self.ctx
        with ctx.step("compare_graphs", f"step {number}"):
            known = all(isinstance(part, torch.Tensor) for _, part in batch.parts())
            sizes = set(ctx.exchange(f"shapes {number}", shapes if known else "")) == {shapes} and not number
            text = json.dumps(step.lines(sizes=sizes)) if step.graphs or step.breaks else ""
            marks = ctx.exchange(f"graphs {number}", text and hashlib.sha256(text.encode()).hexdigest())
            captured = [place for place, mark in enumerate(marks) if mark]
            self._captured |= bool(captured)
            if len({marks[place] for place in captured}) < 2:
                return None
            texts = ctx.exchange(f"calls {number}", text)
        if not text:
            return None
        own = captured.index(ctx.group_rank)
        return passes.parting(own, [texts[place] for place in captured], [ctx.ranks[place] for place in captured])
