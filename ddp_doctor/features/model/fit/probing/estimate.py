"""The memory of a rank with each strategy, combined from computed and traced parts."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ddp_doctor.features.model.fit.facts import Estimate, FitFact, Precision
from ddp_doctor.features.model.fit.probing import fake, peaks, subject, trace
from ddp_doctor.features.model.fit.probing.peaks import Job, Parameter, Step
from ddp_doctor.features.model.fit.probing.subject import Stopped, Subject
from ddp_doctor.features.model.fit.probing.trace import Event, How
from ddp_doctor.features.model.user_model.probing import user_code
from ddp_doctor.features.model.user_model.probing.user_code import Misuse
from ddp_doctor.knowledge.ddp.strategies import FSDP2_NEEDS, STRATEGIES, Strategy
from ddp_doctor.model.fact import Misused
from ddp_doctor.parse.options import is_configuration

#: A batch this many times larger is traced to measure the memory per sample. The batch determines which moment has the
#: peak, and one more sample would not show the moment that dominates with large batches.
_LARGER = 16
#: Words in the errors of operations that have only GPU kernels, or that leave torch.
_LIMITS = ("cuda", "triton", "gpu", "nvcc", "flash", "tensor subclass", "faketensor")


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
    """Return the estimates of ``module:factory`` or ``hf:NAME``, with ``batch`` and ``sequence`` as the batch's shape.

    ``device`` is the kind of device that the job uses: on "cuda" an optimizer handles all parameters at once, on "cpu"
    one by one. It runs the user's code, so only a rank calls it. Raises Misused.
    """
    fact = FitFact(model=name, precision=precision, ranks=ranks)
    try:
        return fact.model_copy(update=_Estimates(subject.of(name, batch, sequence), fact, ranks_per_node, device).all())
    except Stopped as stopped:
        return fact.model_copy(update={"trouble": stopped.trouble})
    except Misuse as misuse:
        raise Misused(str(misuse)) from None


class _Estimates:
    """The estimates of one model."""

    def __init__(self, loaded: Subject, fact: FitFact, ranks_per_node: int, device: str) -> None:
        self.subject, self.fact, self.ranks_per_node, self.device = loaded, fact, ranks_per_node, device
        self.units = subject.units_of(loaded.model, loaded.loaded.units)
        self.left_out: list[str] = []
        self.optimizer = ""
        self.steps: dict[object, Step] = {}  # by device and parameters

    def all(self) -> dict[str, Any]:
        """Return the fields of the fact."""
        if self.fact.precision == "bf16":
            self._to_bfloat16()
        kinds = Counter(type(unit).__name__ for unit in self.units)
        name, size = subject.largest(self.subject.model)
        loaded = self.subject.loaded
        if loaded.step is not None:
            self.left_out.append("the factory's own step: counted is one forward, one backward and one optimizer step")
        estimates = tuple(self._estimates())
        return {
            "batch": self.subject.samples or None,
            "tokens": subject.tokens_of(self.subject.given) if is_configuration(self.fact.model) else None,
            "optimizer": f"{self.optimizer}{'' if loaded.optimizer else ' (none was given)'}",
            "units": "" if loaded.units else ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
            "largest": name,
            "largest_bytes": size,
            "left_out": tuple(dict.fromkeys(self.left_out)),
            "estimates": estimates,
        }

    def _to_bfloat16(self) -> None:
        import torch

        with self.subject.mode, fake.conversions():
            self.subject.model.to(torch.bfloat16)

    def _estimates(self) -> Iterator[Estimate]:
        rows, job, amp = self._rows(), self._job(), self.fact.precision == "amp"
        steps = {row.name: self._step(row, job) for row in rows}
        for sharded in (False, True):
            if sharded and amp:  # FSDP2 computes with bfloat16 parameters, without autocast
                self._to_bfloat16()
            cast = self.fact.precision == "bf16" or (sharded and amp)
            for checkpointing in (False, True):
                how = How(checkpointing, autocast=amp and not sharded)
                events, larger = self._trace(how, cast, 0), []
                more = (_LARGER - 1) * self.subject.samples
                with suppress(Stopped, Misuse):  # the model does not accept another batch size
                    larger = self._trace(how, cast, more) if more else []
                for row in (row for row in rows if row.shards_parameters is sharded):
                    found = peaks.estimate(row, checkpointing, job, events, steps[row.name])
                    grown = peaks.estimate(row, checkpointing, job, larger, steps[row.name]).pass_bytes if larger else 0
                    adds = -(-max(0, grown - found.pass_bytes) // max(more, 1))
                    yield found.model_copy(update={"sample_bytes": adds})

    def _rows(self) -> list[Strategy]:
        """Return the strategies that are possible here."""
        import torch.distributed.fsdp

        rows, ranks, of_node = list(STRATEGIES), self.fact.ranks, self.ranks_per_node
        if not hasattr(torch.distributed.fsdp, "fully_shard"):
            rows = [row for row in rows if not row.shards_parameters]
            self.left_out.append(f"all strategies of FSDP2: they need torch {FSDP2_NEEDS}")
        if ranks <= of_node or ranks % of_node:
            rows = [row for row in rows if not row.within_node]
            self.left_out.append(
                "hsdp: all ranks are on one node, where it is zero3"
                if ranks <= of_node
                else f"hsdp: {ranks} ranks are no multiple of the {of_node} of a node"
            )
        return rows

    def _job(self) -> Job:
        amp = self.fact.precision == "amp"

        def taken(p: Any) -> Parameter:
            computed = 2 if amp and p.is_floating_point() else p.element_size()
            return Parameter(tuple(p.shape), p.element_size(), computed, p.requires_grad)

        buffers = self.subject.model.buffers()
        return Job(
            units=[list(map(taken, own)) for own in subject.own_parameters(self.subject.model, self.units)],
            buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in buffers),
            ranks=self.fact.ranks,
            ranks_per_node=self.ranks_per_node,
            device=self.device,
        )

    def _trace(self, how: How, cast: bool, more: int) -> list[Event]:
        """Return the events of a step, or only its parameters' events if the model does not run on fake tensors.

        Raises Misuse and Stopped.
        """
        own = subject.own_parameters(self.subject.model, self.units)
        if self.subject.loaded.make_batch is None:
            self.left_out.append(f"activations and temporaries: {self.fact.model} returns no make_batch")
            return trace.of_parameters(own)
        given = self.subject.batch(more, cast=cast)
        try:
            with self.subject.mode:
                return trace.run(self.subject.model, given, self.units, own, how)
        except Misuse:
            raise
        except Exception as error:
            trouble = user_code.trouble("forward", error)
            is_limit = isinstance(error, fake.limits()) or any(word in f"{error}".lower() for word in _LIMITS)
            if not is_limit and not is_configuration(self.fact.model):
                raise Stopped(trouble) from error
            said = trouble.message.partition(". ")[0] or type(error).__name__
            self.left_out.append(f"activations and temporaries: {said}{trouble.where and f' ({trouble.where})'}")
            return trace.of_parameters(own)

    def _step(self, row: Strategy, job: Job) -> Step:
        """Return the optimizer's step, which strategies with equal parameters share."""
        parameters = [parameter for parameter in job.parameters() if parameter.trainable]
        if row.shards_state and not row.shards_parameters:
            parameters = peaks.zero1_shares(parameters, job.ranks)
        shards, device = job.shards(row), "cpu" if row.offloads else self.device
        shapes = ((-(-p.shape[0] // shards), *p.shape[1:]) if p.shape else () for p in parameters)
        held = device, tuple(zip(shapes, (p.bytes for p in parameters), strict=True))
        if held not in self.steps:
            self.steps[held] = self._step_of(*held)
        return self.steps[held]

    def _step_of(self, device: str, parameters: tuple[tuple[tuple[int, ...], int], ...]) -> Step:
        import torch

        types = {4: torch.float32, 2: torch.bfloat16, 8: torch.float64, 16: torch.complex128}
        with self.subject.mode:
            made = [
                torch.nn.Parameter(torch.empty(shape, dtype=types[size], device=device)) for shape, size in parameters
            ]
        try:
            return self._stepped(self.subject.loaded.optimizer or torch.optim.AdamW, made)
        except Misuse:
            raise
        except Exception as error:  # noqa: BLE001 - the user's optimizer on fake tensors may raise anything
            self.left_out.append(
                f"the state of the optimizer, for which AdamW's is taken: {type(error).__name__}: {error}"
            )
            return self._stepped(torch.optim.AdamW, made)

    def _stepped(self, make: Callable[[Any], Any], made: Sequence[Any]) -> Step:
        """Return the optimizer's state after a step, and the temporary memory of the next step."""
        import torch

        lives = fake.Lives()
        with self.subject.mode, fake.foreach():
            for parameter in made:
                parameter.grad = torch.empty_like(parameter)
                lives.known(parameter)
                lives.known(parameter.grad)
            optimizer = make(made)
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise Misuse(
                    f"optimizer(parameters) returns type {type(optimizer).__name__}; it must return a torch optimizer"
                )
            self.optimizer = self.optimizer or type(optimizer).__name__
            with fake.following(lives):
                optimizer.step()
                state = lives.now()
                first = len(lives.entries)
                optimizer.step()
        return Step(state, max(0, lives.highest(first) - state))
