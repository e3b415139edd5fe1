"""The user's own model if the factory sharded it with fully_shard (FSDP2). It is never wrapped in DDP.

The ranks compare how each has sharded it before a difference can hang the model. Then each rank runs a copy without
fully_shard alone, like a model for DDP. Finally the steps of the job run, and their results are compared with the same
steps of the copies, whose gradients are averaged.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ddp_doctor.features.model.user_model.facts import UserModel
from ddp_doctor.features.model.user_model.names import MOST_NAMES, Names
from ddp_doctor.features.model.user_model.probing import passes, sharded_steps, sharding, steps, unsharded
from ddp_doctor.features.model.user_model.probing.batches import Batch
from ddp_doctor.features.model.user_model.probing.probe import ModelProbe, Stopped
from ddp_doctor.features.model.user_model.probing.sharded_steps import Trained
from ddp_doctor.features.model.user_model.probing.unsharded import Copy
from ddp_doctor.features.model.user_model.probing.user_code import Loaded, Misuse, attempt, generators_kept
from ddp_doctor.features.model.user_model.sharded_facts import ShardedModel
from ddp_doctor.model.fact import Skip
from ddp_doctor.probing import checkpoints
from ddp_doctor.probing.rank_identity import finish

#: Maximum bytes of parameters of a model that each rank copies in full on a CPU …
_MOST_BYTES = 1 << 30
#: … and on a GPU ddp-doctor's share of its memory, divided by this: gradients, optimizer and activations need more.
_GPU_SHARE = 8


class ShardedProbe(ModelProbe):
    """A model in DDP as in ``ModelProbe``, or in fully_shard."""

    def run(self) -> UserModel:
        """Run all phases, or the phases that all ranks can run. Raises Failed and Skip."""
        self.of_sharded: dict[str, Any] = {}
        with suppress(Stopped), generators_kept(self.ctx.device):
            loaded = self.load()
            if self.sharded:
                self._in_shards(loaded)
            else:
                self.in_ddp(loaded)
        if self.sharded and self.of_sharded:
            self.seen["sharded"] = ShardedModel(**self.of_sharded)
        return UserModel(**self.seen)

    def _in_shards(self, loaded: Loaded) -> None:
        model, found = loaded.model, self.of_sharded
        self._describe(loaded)
        self._same_everywhere(loaded)
        meshes = found["meshes"]
        self._stop_if("mesh", bool(meshes) and all(len(mesh.ranks) < self.ctx.world_size for mesh in meshes))
        if loaded.make_batch is None:
            return
        self._require_gpu(model)
        sharding.require_torch(self.ctx.device)
        copy = self._copy(model)
        given = self._batches(loaded)
        if copy is not None:
            self._names = copy.names()
            apart = steps.drifted(self.ctx, copy.model)
            found["apart"] = Names(names=tuple(map(self._name, apart.names)), count=apart.count)
            self._stop_if("start", bool(apart.count))
            copy = self._run_alone(loaded, copy, given)
        unequal = any(local.unused.count for local in self.seen.get("local", ()))
        self._stop_if("graphs", unequal and not found["reduces_unused"])
        why = "the ranks use different parameters" if unequal else ""
        if reason := checkpoints.first_reason(self.ctx, "use the same", why):
            copy, found["not_compared"] = None, reason
        if self._took_s:
            self._require_time()
        optimizer = self._attempt("optimizer", lambda: sharded_steps.optimizer_of(loaded, model))
        found.update(
            optimizer=type(optimizer).__name__,
            optimizer_given=loaded.optimizer is not None,
            step_given=loaded.step is not None,
        )
        found["stale"], found["stale_of"] = sharded_steps.held_elsewhere(optimizer, model)
        self._stop_if("stale", bool(found["stale"]))
        self._steps(loaded, optimizer, copy, given)
        if found.get("off_step") is None:
            for unit in filter(sharding.is_unit, model.modules()):
                unit.reshard()  # a step that ends with a forward leaves it unsharded, and get_state_dict frees that
            named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
            found.update(sharded_steps.save_and_load(self.ctx, model, optimizer, named))

    def _describe(self, loaded: Loaded) -> None:
        each = list(sharding.parameters(loaded.model))
        outside = [
            sharded.name
            for sharded in each
            if sharded.parameter.requires_grad and not sharding.is_dtensor(sharded.parameter)
        ]
        meshes = {sharded.parameter.device_mesh for sharded in each if sharding.is_dtensor(sharded.parameter)}
        self.of_sharded.update(
            root=sharding.is_unit(loaded.model) or sharding.is_unit(getattr(loaded.model, "_orig_mod", None)),
            unit_count=sum(map(sharding.is_unit, loaded.model.modules())),
            meshes=tuple(sorted(map(sharding.mesh_of, meshes), key=str)),
            reduces_unused=all(sharded.policy.reduces_unused for sharded in each if sharded.policy is not None),
            outside=steps.counted(outside),
        )

    def _copy(self, model: Any) -> Copy | None:
        """Return the copy if all ranks can make one; otherwise, note the reason."""
        ctx, copy = self.ctx, None
        most = ctx.gpu_memory_bytes // _GPU_SHARE if ctx.device.startswith("cuda") else _MOST_BYTES
        reason = checkpoints.first_reason(ctx, "can be copied", sharded_steps.why_not(model, most))
        if not reason:
            try:
                with ctx.step("gather", "parameters"):
                    copy = unsharded.copy_of(model)
                    finish(ctx.device)
            except Skip as problem:
                reason = str(problem)
            reason = checkpoints.first_reason(ctx, "copied", reason)
        self.of_sharded["not_compared"] = reason or None
        return None if reason else copy

    def _run_alone(self, loaded: Loaded, copy: Copy, given: Mapping[int, Batch]) -> Copy | None:
        """Run the copy on each rank. If it fails on all but the user's model runs on all, the copy is at fault."""
        buffers = [buffer.detach().clone() for buffer in copy.model.buffers()]
        trouble = passes.run(copy.model, given[0]).trouble
        with self.ctx.step("compare_outcomes", "copy"):
            failed = self.ctx.exchange("outcome of the copy", trouble.type or "Misuse" if trouble else "")
        if all(failed):
            with self.ctx.step("sharded_step", "where no copy runs"):
                own = attempt("forward", lambda: given[0].loss(given[0].forward(loaded.model)).backward())[1]
            self._settle("forward", trouble if own else None, "pass in shards")
            self.of_sharded["not_compared"] = f"a copy without fully_shard does not run ({failed[0]})"
            return None
        steps.restore_buffers(copy.model, buffers)
        self._local_passes(copy.model, given)
        steps.restore_buffers(copy.model, buffers)
        if loaded.step is not None:
            self._same_calls(loaded, copy, given)
            steps.restore_buffers(copy.model, buffers)
        return copy

    def _same_calls(self, loaded: Loaded, copy: Copy, given: Mapping[int, Batch]) -> None:
        """Continue if all ranks call units alike in the factory's step, or if a rank cannot run it."""
        import torch

        ctx, noted = self.ctx, passes.Noted()
        initial = [pair.whole.detach().clone() for pair in copy.pairs]
        with passes.noting(copy.model, noted):
            trouble = attempt("backward", lambda: sharded_steps.alone(ctx, loaded, copy, given, "by itself"))[1]
        with torch.no_grad():
            for pair, value in zip(copy.pairs, initial, strict=True):
                pair.whole.copy_(value)
        calls = [call for call in noted.calls if call[0] in copy.units]
        with ctx.step("compare_graphs", "of the step"):
            texts = ctx.exchange("calls of the step", "" if trouble else json.dumps(calls))
        modules = {tuple(name for name, _ in json.loads(text)) for text in texts if text}  # lines may differ
        if all(texts) and len(modules) > 1:
            self.seen["step_parting"] = passes.parting(ctx.group_rank, texts, ctx.ranks)
        self._stop_if("step", self.seen.get("step_parting") is not None)

    def _steps(self, loaded: Loaded, optimizer: Any, copy: Copy | None, given: Mapping[int, Batch]) -> None:
        ctx, found = self.ctx, self.of_sharded
        parameters = [each.parameter for each in sharding.parameters(loaded.model)]
        if copy is not None:
            parameters = [pair.sharded.parameter for pair in copy.pairs]
        done = sharded_steps.sharded(ctx, loaded, optimizer, given, parameters)
        found.update(steps=len(done.shards), loss=done.losses[-1])
        if copy is None:
            return
        apart = self._alone(loaded, copy, given)
        if apart is None:
            return
        found["loss_alone"] = apart[0].losses[-1]
        for number in range(len(done.shards)):
            mine = sharded_steps.off(copy.pairs, number, done, *apart)
            with ctx.step("compare_parameters", f"after step {number}"):
                counts = ctx.exchange(f"off after step {number}", str(len(mine)))
            if any(map(int, counts)):
                found.update(off_step=number, off=tuple(mine[:MOST_NAMES]), off_count=len(mine))
                return

    def _alone(self, loaded: Loaded, copy: Copy, given: Mapping[int, Batch]) -> tuple[Trained, Trained] | None:
        """Run the steps of the copy twice, the second time from parameters that are rounded once more."""
        import torch

        copy.average_gradients(self.ctx)
        initial = [pair.whole.detach().clone() for pair in copy.pairs]
        buffers = [buffer.detach().clone() for buffer in copy.model.buffers()]

        def twice() -> tuple[Trained, Trained]:
            first = sharded_steps.alone(self.ctx, loaded, copy, given, "as it is")
            if all(torch.equal(pair.whole, value) for pair, value in zip(copy.pairs, initial, strict=True)):
                raise Misuse("step(model, optimizer, batch) does not change any parameter; it must update the model")
            self.of_sharded["drifted"] = steps.counted(sharded_steps.drifted(self.ctx, copy, initial))
            steps.restore_buffers(copy.model, buffers)
            sharded_steps.round_once(copy, initial)
            return first, sharded_steps.alone(self.ctx, loaded, copy, given, "rounded")

        both, trouble = attempt("backward", twice)
        mine = trouble.message if trouble else ""
        if trouble and not trouble.misuse:
            mine = f"without fully_shard your step raises {trouble.type}: {mine}"
        reason = checkpoints.first_reason(self.ctx, "stepped alone", mine)
        self.of_sharded["not_compared"] = reason[:300] or None
        return None if reason else both
