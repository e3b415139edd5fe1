"""The memory of a rank under each strategy: what is computed and what is traced, put together."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ddp_doctor.facts.ddp.fit import Estimate, FitFact, Precision
from ddp_doctor.knowledge.ddp.strategies import STRATEGIES, Strategy
from ddp_doctor.model.fact import Misused
from ddp_doctor.parse.options import CONFIGURATION, is_configuration
from ddp_doctor.probing.fit import fake, peaks, subject, trace
from ddp_doctor.probing.fit.peaks import Job, Parameter, Step
from ddp_doctor.probing.fit.strategies import trainable
from ddp_doctor.probing.fit.subject import Stopped, Subject
from ddp_doctor.probing.fit.trace import Event, How
from ddp_doctor.probing.user_model import user_code
from ddp_doctor.probing.user_model.user_code import Misuse

#: A batch so many times as large is traced to see what a sample adds. Which moment is the highest depends on the batch:
#: by one sample more, the moment that counts later would not be seen.
_LARGER = 16
#: Said by operations that only a GPU's kernels have.
_OF_A_GPU = ("cuda", "triton", "gpu", "nvcc", "flash")


def estimate(
    name: str,
    *,
    ranks: int,
    ranks_per_node: int,
    precision: Precision = "fp32",
    device: str = "cuda",
    batch: int | None = None,
    sequence: int | None = None,
) -> FitFact:
    """The estimates of ``module:factory`` or ``hf:NAME``, of which ``batch`` and ``sequence`` are the batch's shape.

    ``device`` is the kind on which the job runs. It runs the user's code, so only a rank calls it. Raises Misused.
    """
    started = time.process_time()
    seen: dict[str, Any] = {
        "model": name,
        "precision": precision,
        "device": device,
        "ranks": ranks,
        "ranks_per_node": ranks_per_node,
    }
    try:
        if is_configuration(name):
            loaded = subject.of_transformers(name.removeprefix(CONFIGURATION), batch, sequence)
        else:
            loaded = subject.of_factory(name)
        seen.update(_Estimates(loaded, seen).all())
    except Stopped as stopped:
        seen.update(stopped=stopped.phase, trouble=stopped.trouble)
    except Misuse as misuse:
        raise Misused(str(misuse)) from None
    return FitFact(**seen, cpu_s=time.process_time() - started)


class _Estimates:
    """All that is worked out of one model."""

    def __init__(self, loaded: Subject, seen: dict[str, Any]) -> None:
        self.subject, self.seen = loaded, seen
        self.named = subject.units_of(loaded.model, loaded.loaded.units)
        self.units = [module for _, module in self.named]
        self.left_out: list[str] = []
        self.optimizer = ""

    def all(self) -> dict[str, Any]:
        """The fields of the fact."""
        model = self.subject.model
        if self.seen["precision"] == "bf16":
            self._to_bfloat16()
        parameters = list(model.parameters())
        fields = {
            "batch": self.subject.samples or None,
            "elements": sum(parameter.numel() for parameter in parameters),
            "trainable_elements": sum(parameter.numel() for parameter in trainable(parameters)),
            "parameter_bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
            "units": subject.described(self.named),
            "units_given": bool(self.subject.loaded.units),
            "largest": subject.largest(model),
            "optimizer_given": self.subject.loaded.optimizer is not None,
        }
        if self.subject.loaded.step is not None:
            self.left_out.append("the factory's own step: counted is one forward, one backward and one optimizer step")
        estimates = list(self._estimates())
        return {**fields, "estimates": estimates, "optimizer": self.optimizer, "left_out": self.left_out}

    def _to_bfloat16(self) -> None:
        import torch

        with self.subject.mode, fake.conversions():
            self.subject.model.to(torch.bfloat16)

    def _estimates(self) -> Iterator[Estimate]:
        rows = self._rows()
        amp = self.seen["precision"] == "amp"
        own = self._own()
        kept = [[parameter.element_size() for parameter in parameters] for parameters in own]
        replicated = [row for row in rows if not row.shards_parameters]
        yield from self._of(replicated, kept, How(autocast=amp), self.seen["precision"] == "bf16")
        if amp:  # FSDP2 computes with parameters in bfloat16, without autocast
            self._to_bfloat16()
        yield from self._of(
            [row for row in rows if row.shards_parameters], kept, How(), self.seen["precision"] != "fp32"
        )

    def _own(self) -> list[list[Any]]:
        return subject.own_parameters(self.subject.model, self.units)

    def _of(self, rows: Sequence[Strategy], kept: list[list[int]], how: How, cast: bool) -> Iterator[Estimate]:
        own = self._own()
        job = Job(
            units=[
                [
                    Parameter(tuple(p.shape), size, p.element_size(), p.requires_grad)
                    for p, size in zip(parameters, sizes, strict=True)
                ]
                for parameters, sizes in zip(own, kept, strict=True)
            ],
            buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in self.subject.model.buffers()),
            ranks=self.seen["ranks"],
            ranks_per_node=self.seen["ranks_per_node"],
            device=self.seen["device"],
        )
        steps = {row.name: self._step(row, job) for row in rows}
        for checkpointing in (False, True):
            here = How(checkpointing, how.autocast)
            events, larger = self._trace(own, here, cast, 0), []
            more = (_LARGER - 1) * self.subject.samples
            with suppress(Stopped, Misuse):  # of a model that takes no other batch
                larger = self._trace(own, here, cast, more) if more else []
            for row in rows:
                found = peaks.estimate(row, checkpointing, job, events, steps[row.name])
                grown = peaks.estimate(row, checkpointing, job, larger, steps[row.name]).pass_bytes if larger else 0
                adds = -(-max(0, grown - found.pass_bytes) // max(more, 1))
                yield found.model_copy(update={"sample_bytes": adds})

    def _rows(self) -> list[Strategy]:
        """Those that can be had here."""
        import torch.distributed.fsdp

        rows = list(STRATEGIES)
        if not hasattr(torch.distributed.fsdp, "fully_shard"):
            rows = [row for row in rows if not row.needs]
            self._leave_out(f"all strategies of FSDP2: they need torch {STRATEGIES[-1].needs}")
        ranks, of_node = self.seen["ranks"], self.seen["ranks_per_node"]
        if ranks == of_node or ranks % of_node:
            rows = [row for row in rows if not row.within_node]
            self._leave_out(
                "hsdp: all ranks are on one node, where it is zero3"
                if ranks == of_node
                else f"hsdp: {ranks} ranks are no multiple of the {of_node} of a node"
            )
        return rows

    def _leave_out(self, what: str) -> None:
        if what not in self.left_out:
            self.left_out.append(what)

    def _trace(self, own: Sequence[Sequence[Any]], how: How, cast: bool, more: int) -> list[Event]:
        """The events of a step; only those of the parameters where the model does not run on fake tensors.

        Raises Misuse and Stopped.
        """
        model = self.subject.model
        if self.subject.given is None:
            self._leave_out("activations and temporaries: the factory has no make_batch")
            return trace.of_parameters(own)
        given = self.subject.batch(more, cast=cast)
        try:
            with self.subject.mode:
                return trace.run(model, given, self.units, own, how)
        except Misuse:
            raise
        except Exception as error:
            trouble = user_code.trouble("forward", error)
            of_a_gpu = any(word in f"{error}".lower() for word in _OF_A_GPU)
            is_limit = isinstance(error, fake.limits()) or of_a_gpu or is_configuration(self.seen["model"])
            if not is_limit:
                raise Stopped("forward", trouble) from error
            first = trouble.message.partition(". ")[0]
            self._leave_out(f"activations and temporaries: {first or type(error).__name__} ({trouble.where})")
            return trace.of_parameters(own)

    def _step(self, row: Strategy, job: Job) -> Step:
        from torch.optim import AdamW

        parameters = [parameter for parameter in job.parameters() if parameter.trainable]
        if row.shards_state and not row.shards_parameters:
            parameters = peaks.zero1_shares(parameters, job.ranks)
        shards = job.shards(row)
        shapes = [(-(-p.shape[0] // shards), *p.shape[1:]) if p.shape else () for p in parameters]
        device = "cpu" if row.offloads else job.device
        try:
            return self._stepped(self.subject.loaded.optimizer or AdamW, shapes, parameters, device)
        except Exception as error:  # noqa: BLE001 - an optimizer of the user's, on fake tensors
            self._leave_out(f"the state of the optimizer, for which AdamW's is taken: {type(error).__name__}: {error}")
            return self._stepped(AdamW, shapes, parameters, device)

    def _stepped(
        self,
        make: Callable[[Any], Any],
        shapes: Sequence[tuple[int, ...]],
        parameters: Sequence[Parameter],
        device: str,
    ) -> Step:
        """What is there after a step beside parameters and gradients, and what comes for a moment in the next one."""
        import torch

        types = {4: torch.float32, 2: torch.bfloat16, 8: torch.float64}
        lives = fake.Lives()
        with self.subject.mode, fake.foreach():
            made = [
                torch.nn.Parameter(torch.empty(shape, dtype=types[parameter.bytes], device=device))
                for shape, parameter in zip(shapes, parameters, strict=True)
            ]
            for parameter in made:
                parameter.grad = torch.empty_like(parameter)
                lives.known(parameter)
                lives.known(parameter.grad)
            optimizer = make(made)
            self.optimizer = self.optimizer or type(optimizer).__name__
            with fake.following(lives):
                optimizer.step()
                state = lives.now()
                first = len(lives.entries)
                optimizer.step()
        return Step(state, max(0, lives.highest(first) - state))
