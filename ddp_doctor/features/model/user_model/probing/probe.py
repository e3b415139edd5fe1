"""The user's own model, run phase by phase on all ranks; after each phase the ranks compare their outcomes.

A rank that fails reports it over the control store, and all ranks stop together. If a rank does not return, the others
wait for it in a step that names it, with the line of the user's code where it is stuck.
"""

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from ddp_doctor.features.model.user_model import gradient_tolerance
from ddp_doctor.features.model.user_model.facts import LocalPass, Misplaced, OffGradient, Phase, Trouble
from ddp_doctor.features.model.user_model.names import MOST_NAMES
from ddp_doctor.features.model.user_model.probing import batches, meshes, passes, sharding, steps
from ddp_doctor.features.model.user_model.probing.batches import Batch, move, off_device
from ddp_doctor.features.model.user_model.probing.passes import Pass
from ddp_doctor.features.model.user_model.probing.user_code import SEED, Loaded, attempt, find, made
from ddp_doctor.knowledge.ddp import manifests
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Failed, Misused, Skip
from ddp_doctor.probing import module_manifest
from ddp_doctor.probing.rank_identity import finish

T = TypeVar("T")
_RAISED, _MISUSED, _NO_MEMORY = "raised", "misused", "no memory"
#: The batches of the probe: one may take a branch that the other does not.
_BATCHES = (0, 1)
#: Remaining passes after each rank's first two.
_PASSES_LEFT = 9


class Stopped(Exception):
    """All ranks stop here, because of an error on one of them."""


class ModelProbe:
    """The results for the model, collected by all ranks phase by phase."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self._took_s: list[float] = []
        self._unused_somewhere = False  # on any rank: all ranks must wrap in the same way
        self._names: dict[str, str] = {}  # of the user's parameters, if a copy with other names runs
        self.sharded = False  # by fully_shard, on any rank
        self.seen: dict[str, Any] = {"model": ctx.model, "device": ctx.device, "world_size": ctx.world_size}

    def in_ddp(self, loaded: Loaded) -> None:
        """Run all phases, or the phases that all ranks can run. Raises Stopped, Failed and Skip."""
        given, unused = self.ready(loaded)
        options = {**loaded.options, **({"find_unused_parameters": True} if unused else {})}
        if given:
            self._synchronised_steps(loaded.model, options, given)
        else:
            self._wrap(loaded.model, options)

    def load(self) -> Loaded:
        """Return the factory's result, and note whether it is sharded on any rank. Raises Stopped, Failed and Skip."""
        # Each node has its own --model; the head node cannot set it for the others.
        with self.ctx.step("compare_names"):
            names = self.ctx.exchange("name", self.ctx.model)
        if len(set(names)) > 1:
            self._stop("names")
        loaded = self._load()
        with self.ctx.step("compare_names", "whether it is sharded"):
            answers = self.ctx.exchange("sharded", "yes" if sharding.is_sharded(loaded.model) else "")
        self.sharded = any(answers)
        return loaded

    def ready(self, loaded: Loaded) -> tuple[Mapping[int, Batch], bool]:
        """Run everything before DDP: compare the models, and run each rank's forward and backward alone.

        Returns the batches, empty if the factory makes none, and True if some parameter got no gradient on some rank.
        Raises Stopped, Failed and Skip.
        """
        self.require_alike(loaded)
        if loaded.make_batch is None:
            return {}, False
        given = self._batches(loaded)
        unused = self._local_passes(loaded.model, given)
        self._require_time()
        return given, unused

    def require_alike(self, loaded: Loaded) -> None:
        """Continue if all ranks have the same model and it runs on their devices. Raises Stopped and Failed."""
        from torch.nn.parameter import is_lazy

        self._same_everywhere(loaded)
        if any(map(is_lazy, loaded.model.parameters())):  # on all ranks: their manifests agree
            # DDP rejects parameters without a size, but a rank's local pass would set their size.
            self._attempt("wrap", lambda: steps.wrap(self.ctx, loaded.model, loaded.options), "wrap of lazy modules")
        if loaded.make_batch is not None:
            self._require_gpu(loaded.model)

    def _same_everywhere(self, loaded: Loaded) -> None:
        """Count and place the model; continue if all ranks have the same one, with something to train."""
        model = loaded.model
        self._count(model, loaded)
        if not self.sharded:
            self.seen["moved"] = self._attempt("move", lambda: move(model, self.ctx.device))
        off = off_device(model, self.ctx.device)
        self.seen["misplaced"] = off[:MOST_NAMES]
        self._stop_if("placement", any(misplaced.kind != "attribute" for misplaced in off))
        by_rank = module_manifest.of_all_ranks(self.ctx, sharding.manifest(model))
        self.seen["manifest"] = manifests.kept(self.ctx.rank, by_rank)
        if len(set(map(manifests.digest, by_rank.values()))) > 1:
            self._stop("manifest")
        if not self.seen["trainable"]:
            self._stop("trainable")

    def _stop(self, phase: str) -> None:
        self.seen["stopped"] = phase
        raise Stopped

    def _attempt(self, phase: Phase, call: Callable[[], T | None], name: str = "") -> T:
        """Run the user's code; all ranks stop if it fails on one of them."""
        value, trouble = attempt(phase, call)
        self._settle(phase, trouble, name or phase)
        assert value is not None
        return value

    def _settle(self, phase: str, trouble: Trouble | None, name: str) -> None:
        """Continue if no rank has trouble.

        Raises Stopped; Misused if --model is unusable on all ranks; if a GPU's memory share is too small, Failed there
        and Skip on the other ranks.
        """
        mine = ""
        if trouble is not None:
            mine = _NO_MEMORY if trouble.out_of_memory else _MISUSED if trouble.misuse else _RAISED
        with self.ctx.step("compare_outcomes", name):
            answers = self.ctx.exchange(f"outcome of {name}", mine)
        if not any(answers):
            return
        if trouble is not None and trouble.out_of_memory:
            raise Failed(f"the GPU memory that ddp-doctor may use is too small for this step of the model: {phase}")
        if trouble is not None and set(answers) == {_MISUSED}:
            raise Misused(trouble.message)
        if set(answers) <= {"", _NO_MEMORY}:
            where = self.ctx.ranks[answers.index(_NO_MEMORY)]
            raise Skip(f"the GPU memory that ddp-doctor may use on rank {where} is too small")
        self.seen["trouble"] = trouble
        self._stop(phase)

    def _require_time(self) -> None:
        """Stop if the remaining passes would not end in time, as with large models on slow devices."""
        # The first pass may compile, and the model may compile again in DDP.
        needs = max(self._took_s) + (_PASSES_LEFT - 1) * min(self._took_s)
        with self.ctx.step("compare_times"):
            answers = self.ctx.exchange("times", json.dumps([needs, self.ctx.remaining()]))
        needed = max(json.loads(text)[0] for text in answers)
        left = min(json.loads(text)[1] for text in answers)
        if needed > left:
            self._stop("time")

    def _load(self) -> Loaded:
        import torch
        import torch.distributed as dist

        name = self.ctx.model
        with meshes.compared(self.ctx) as called:
            factory = self._attempt("import", lambda: find(name))
            loaded = self._attempt("factory", lambda: called(lambda: made(name, factory)))
        self.ctx.model_mesh = meshes.of_model(loaded.mesh)
        if not dist.is_initialized():
            raise Failed(
                f"{self.ctx.model} destroyed ddp-doctor's process group; remove its call of destroy_process_group()"
            )
        if self.ctx.device.startswith("cuda"):
            current = f"cuda:{torch.cuda.current_device()}"
            self.seen["found_device"] = current if current != self.ctx.device else None
        return loaded

    def _count(self, model: Any, loaded: Loaded) -> None:
        from torch.nn.parameter import is_lazy

        named = passes.trainable(model)
        sized = [parameter for _, parameter in named if not is_lazy(parameter)]
        self.seen.update(
            parameters=sum(1 for _ in model.parameters()),
            trainable=len(named),
            elements=sum(parameter.numel() for parameter in sized),
            gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in sized),
            has_batch=loaded.make_batch is not None,
            options=tuple(f"{name}={value!r}"[:80] for name, value in loaded.options.items()),
            finds_unused=bool(loaded.options.get("find_unused_parameters")),
            mesh=None if loaded.mesh is None else sharding.mesh_of(loaded.mesh),
        )

    def _stop_if(self, phase: str, met: bool, name: str = "") -> None:
        with self.ctx.step("compare_outcomes", name or phase):
            answers = self.ctx.exchange(f"outcome of {name or phase}", "off" if met else "")
        if any(answers):
            self._stop(phase)

    def _require_gpu(self, model: Any) -> None:
        """Raise Failed for SyncBatchNorm on a CPU (ValueError in torch 2.13), where it is not a fault of the model."""
        from torch.nn import SyncBatchNorm

        first = next((name for name, module in model.named_modules() if isinstance(module, SyncBatchNorm)), None)
        if first is not None and self.ctx.device == "cpu":  # on all ranks: their manifests agree
            raise Failed(
                f"{self.ctx.model} has SyncBatchNorm ({first}), which works only on GPUs; these ranks are on the CPU"
            )

    def _batches(self, loaded: Loaded) -> dict[int, Batch]:
        found: dict[int, Batch] = {}
        misplaced: list[Misplaced] = []
        for step in _BATCHES:
            make = partial(batches.make, self.ctx, loaded, step)
            found[step], off = self._attempt("make_batch", make, f"make_batch({step})")
            misplaced += off
        self.seen["misplaced"] = (*self.seen["misplaced"], *misplaced)[:MOST_NAMES]
        self._stop_if("inputs", bool(misplaced))
        return found

    def _local_passes(self, model: Any, given: Mapping[int, Batch]) -> bool:
        """Run each rank alone, before a difference can hang DDP. Return True if any parameter is unused."""
        self.seen["local"] = ()
        for step, batch in given.items():
            started = self.ctx.clock()
            done = passes.run(model, batch)
            finish(self.ctx.device)  # if a collective of the user's code hangs, it hangs here
            self._took_s.append(self.ctx.clock() - started)
            self._settle(done.trouble.phase if done.trouble else "forward", done.trouble, f"pass {step}")
            self.seen["local"] += (self._local_pass(step, done),)
            self._stop_if("unsynchronized", bool(done.unknown), f"parameters of pass {step}")
            self.seen["batch_norms"] = self.seen.get("batch_norms") or passes.batch_norms(done.noted)
        return self._unused_somewhere

    def _local_pass(self, step: int, done: Pass) -> LocalPass:
        ctx = self.ctx
        unused = [place for place, used in enumerate(done.used) if not used]
        with ctx.step("compare_graphs", f"pass {step}"):
            all_unused = [set(json.loads(text)) for text in ctx.exchange(f"unused {step}", json.dumps(unused))]
            texts = ctx.exchange(f"calls {step}", json.dumps(done.noted.calls))
        names = list(map(self._name, done.names))
        everywhere = set.intersection(*all_unused)
        self._unused_somewhere |= any(all_unused)
        return LocalPass(
            step=step,
            loss=done.loss,
            not_finite=steps.counted(list(map(self._name, done.not_finite))),
            unused=steps.counted([names[place] for place in unused if place not in everywhere]),
            unused_everywhere=steps.counted([names[place] for place in sorted(everywhere)]),
            frozen=steps.counted(list(map(self._name, done.frozen))),
            unknown=steps.counted(done.unknown),
            parting=passes.parting(ctx.group_rank, texts, ctx.ranks),
        )

    def _name(self, name: str) -> str:
        return self._names.get(name, name)

    def _wrap(self, model: Any, options: Mapping[str, Any], name: str = "wrap") -> Any:
        ddp = self._attempt("wrap", lambda: steps.wrap(self.ctx, model, options), name)
        self.seen["buckets"], self.seen["no_buckets"] = steps.buckets(ddp)
        return ddp

    def _synchronised_steps(self, model: Any, options: Mapping[str, Any], given: Mapping[int, Batch]) -> None:
        ctx, ddp = self.ctx, self._wrap(model, options)
        saved = [buffer.detach().clone() for buffer in model.buffers()]  # a forward may change them
        own = {step: self._again(model, saved, given[step], step) for step in _BATCHES}
        again = self._again(model, saved, given[_BATCHES[0]], _BATCHES[0])
        repeats, spread = steps.spread_of(own[_BATCHES[0]], again)
        self.seen.update(repeats=repeats, repeat_error=spread)
        with ctx.step("compare_spreads"):  # one rank's differences affect the mean of all
            spread = max(map(float, ctx.exchange("spread", repr(spread))))
        self._compare_on_same_batch(model, saved, given[_BATCHES[0]], spread)
        del ddp  # its hooks counted the passes above as its first step
        gc.collect()
        ddp = self._wrap(model, options, "wrap again")
        off: list[OffGradient] = []
        # DDP rebuilds its buckets after the first step, and its logging data show them in the third.
        for step in (*_BATCHES, _BATCHES[0]):
            steps.restore_buffers(model, saved)
            got, self.seen["forward_s"], self.seen["backward_s"] = steps.synchronized(ctx, ddp, given[step], step)
            if spread > gradient_tolerance.REPEATED:
                continue  # the model has an unseeded generator, so each pass has other gradients
            off += steps.compare(ctx, step, model, own[step], got, spread)
            self.seen["compared_elements"] = sum(map(len, own[step].gradients))
        self.seen.update(off=tuple(off[:MOST_NAMES]), off_count=len({gradient.parameter for gradient in off}))
        steps.descend(model)
        self.seen["drifted"] = steps.drifted(ctx, model)
        self.seen["buckets"], self.seen["no_buckets"] = steps.buckets(ddp)

    def _again(self, model: Any, saved: Sequence[Any], batch: Batch, step: int) -> Pass:
        steps.restore_buffers(model, saved)
        done = passes.run(model, batch, SEED + step)
        if done.trouble is not None:  # the same pass worked before
            raise steps.StepFailed(f"{done.trouble.type}: {done.trouble.message}")
        return done

    def _compare_on_same_batch(self, model: Any, saved: Sequence[Any], batch: Batch, spread: float) -> None:
        """Check whether equal parameters, seeds and inputs give the same loss and gradients on every rank."""
        ctx = self.ctx
        common = batches.common(ctx, batch)
        if common is None:
            self.seen["no_same_batch"] = "the ranks' batches differ in more than the values of their tensors"
            return
        steps.restore_buffers(model, saved)
        done = passes.run(model, common)
        with ctx.step("compare_losses"):
            answers = ctx.exchange("loss", "" if done.loss is None else done.loss.hex())
            failed = any(ctx.exchange("failed", "" if done.trouble is None else "failed"))
        first = float.fromhex(answers[0]) if answers[0] else None
        self.seen.update(same_batch_loss=done.loss, same_batch_loss_of_first=first)
        if not failed and spread <= gradient_tolerance.REPEATED:
            peer, apart, hooks = passes.compare(ctx, model, done)
            self.seen.update(same_batch_peer=peer, apart=steps.counted(apart), hooks=hooks[:MOST_NAMES])
