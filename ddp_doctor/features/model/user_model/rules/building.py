"""DD770 to DD774, DD782, DD784 to DD787: the model cannot be made, differs, is misplaced or slow, or its code fails."""

from collections.abc import Iterator

from ddp_doctor.features.model.user_model.facts import Trouble, UserModel
from ddp_doctor.features.model.user_model.wording import at, code, culprits, facts, on_ranks
from ddp_doctor.knowledge.ddp import manifests
from ddp_doctor.knowledge.thresholds import FEW_SAMPLES, SMALL_BATCH
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.frames import called, of_the_job
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.remedies.torch_calls import HUNG_CODE, in_model_code
from ddp_doctor.views.failed_trials import used_elsewhere
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.nodes import and_more
from ddp_doctor.wording.ranks import capital, line_in_the_job, rank_culprits, rank_of, ranks_at, short, stack_in_the_job


@rule("DD770", "user-model-named-differently", Consequence.RISK, UserModel)
def named_differently(recording: Recording) -> Iterator[Draft]:
    """Nodes of one run have different models, or none.

    Finds: ``--model`` names a different callable on some nodes than on most, or is missing on them.
    Why: The ranks would build different models and hang. The model was not tested.
    Remedy: Start ``ddp-doctor run`` with the same ``--model`` on all nodes; ``--hosts`` and ``srun`` do it.
    See: docs/how-to/test-your-own-model.md
    """
    ranks = facts(recording)
    groups = grouped((rank.fact.model, rank) for rank in ranks)
    if len(groups) < 2:
        return
    usual = max(groups, key=lambda name: (bool(name), len(groups[name])))
    odd = [rank for name, group in groups.items() if name != usual for rank in group]
    others = ", ".join(sorted({f"--model {rank.fact.model}" if rank.fact.model else "no --model" for rank in odd}))
    yield proved(
        culprits(recording, odd),
        f"{capital(on_ranks(recording, odd))} {'was' if len(odd) == 1 else 'were'} started"
        f" with {others}, other ranks with --model {usual}",
        (Evidence(text=f"{name or 'no --model'} on {on_ranks(recording, group)}") for name, group in groups.items()),
        remedy(f"Start every node with --model {usual}", scope="job"),
        detail="The model was not tested, because ranks with different models would hang.",
    )


@rule("DD771", "user-model-raises", Consequence.FAILS, UserModel)
def raises(recording: Recording) -> Iterator[Draft]:
    """Code of the user's model raises an exception.

    Finds: The import of the module, its factory, ``make_batch(step)``, a forward, the loss, a backward or the wrapping
        in DDP raised on all or some ranks, with the innermost line of the user's code. Also reported if ``--model`` is
        usable only on some ranks: the module is missing on one node, or the factory returns no model on it. If no rank
        can use it, it is not a finding but a usage error.
    Why: The job fails in the same way. If only some ranks fail, the others wait for them, by default for 10 (NCCL) or
        30 (gloo) minutes.
    Remedy: Fix the cause that the exception names. In an importable module, keep the code of a script under
        ``if __name__ == "__main__"``, and call ``init_process_group`` in the script, not in the factory.
    See: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    troubles = ((rank.fact.trouble, rank) for rank in facts(recording) if rank.fact.trouble is not None)
    same_trouble = grouped(
        ((trouble.phase, trouble.type, trouble.where), (trouble, rank))
        for trouble, rank in troubles
        if not used_elsewhere(trouble.message)  # DD609 or DD772
    )
    for found in same_trouble.values():
        trouble, ranks = found[0][0], [rank for _, rank in found]
        if trouble.misuse:
            yield likely(
                culprits(recording, ranks),
                f"{ranks[0].fact.model} is unusable on {on_ranks(recording, ranks)}: {trouble.message}",
                Evidence(text=f"in {trouble.phase} on rank {rank_of(ranks[0])}: {trouble.message}"),
                in_model_code(
                    "Use the same files and working directory on all nodes, and return the same model on all ranks"
                ),
                detail="It works on other ranks, so a job would start with only some of its ranks.",
            )
            continue
        yield proved(
            (*culprits(recording, ranks), *code(trouble.where)),
            f"{_DOING[trouble.phase].format(model=ranks[0].fact.model)} raises {trouble.type}{at(trouble.where)}"
            f" on {on_ranks(recording, ranks)}",
            Evidence(text=f"{trouble.type} in {trouble.phase} on rank {rank_of(ranks[0])}{at(trouble.where)}"),
            _after(trouble),
            detail=f"{trouble.type}: {trouble.message or 'it says nothing'}",
        )


_DOING = {
    "import": "The import of your module",
    "factory": "Your factory {model}",
    "move": "Moving your model to the device",
    "make_batch": "Your make_batch",
    "forward": "Your forward",
    "loss": "Your loss",
    "backward": "Your backward",
    "wrap": "Wrapping your model in DDP",
    "optimizer": "Your optimizer(parameters)",
}


def _after(trouble: Trouble) -> Remedy:
    if "initialize the default process group twice" in trouble.message:
        return in_model_code("Move init_process_group from the factory to the script")
    if "value was None when it should not be" in trouble.message:  # fully_shard was called on an already sharded module
        return in_model_code("Call fully_shard once on each module, units first and the containing model last")
    if trouble.type == "SystemExit":
        return in_model_code(
            'Move code that ends the program under `if __name__ == "__main__"`, because the module is imported'
        )
    if trouble.type == "ModuleNotFoundError":
        return in_model_code("Install the missing package for the job's Python, and run ddp-doctor with that Python")
    if "more than 1 value per channel" in trouble.message:
        return in_model_code("Use more than one sample per rank for BatchNorm, or use GroupNorm or SyncBatchNorm")
    return in_model_code(f"Fix the error at {short(trouble.where)}" if trouble.where else "Fix the reported error")


@rule("DD772", "user-model-takes-another-gpu", Consequence.FAILS, UserModel)
def takes_another_gpu(recording: Recording) -> Iterator[Draft]:
    """A factory makes another GPU the current one.

    Finds: After the import and the factory, the current CUDA device is not the rank's own.
    Why: Later tensors on "cuda" go to that GPU. NCCL refuses several ranks on one GPU ("Duplicate GPU detected"), or
        they share its memory and time.
    Remedy: Call ``torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`` in the script, and do not set the device in
        the module.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    off = [rank for rank in facts(recording) if rank.fact.found_device is not None]
    if not off:
        return
    shown = ", ".join(sorted({rank.fact.found_device or "" for rank in off}))
    yield proved(
        culprits(recording, off),
        f"{off[0].fact.model} sets the current CUDA device to {shown} on {on_ranks(recording, off)}",
        (Evidence(text=f"rank {rank_of(rank)}: {rank.fact.found_device}, not {rank.fact.device}") for rank in off[:8]),
        in_model_code("Choose the device by LOCAL_RANK in the script, not in the module"),
        detail=f"Rank {rank_of(off[0])} should use {off[0].fact.device}.",
    )


@rule("DD773", "user-model-differs-between-ranks", Consequence.HANGS, UserModel)
def differs(recording: Recording) -> Iterator[Draft]:
    """Ranks build different models.

    Finds: Parameters or buffers are missing, additional, in another order, or of another shape, type or
        ``requires_grad`` on some ranks. They are compared before DDP sees them.
    Why: DDP matches parameters by position. It raises on some ranks and hangs the others, or averages gradients of
        different parameters.
    Remedy: Build the model independently of the rank: of the environment, a file of the node, a random choice, the
        order of a set.
    See: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """
    kept = {rank_of(rank): rank.fact.manifest for rank in facts(recording) if rank.fact.manifest is not None}
    for found in manifests.compare(manifests.restored(kept)):
        if found.kind in manifests.OF_SHARDING:  # DD790
            continue
        where = ranks_at(recording, found.ranks)
        yield proved(
            rank_culprits(recording, UserModel, found.ranks) if found.sure else (),
            f"Your model differs between {where} and rank {found.peer}: {found.words(where)}",
            Evidence(
                text=f"{found.kind} of {found.names[0]}: {found.here} on {where}, {found.there} on rank {found.peer}"
            ),
            in_model_code("Build the same model on every rank; look for code that depends on the rank or the node"),
            detail=f"It is {', '.join(found.names)}."
            + ("" if found.sure else " No more than half of the ranks agree, so it is unknown which are right."),
        )


@rule("DD774", "user-model-tensors-on-another-device", Consequence.FAILS, UserModel)
def on_another_device(recording: Recording) -> Iterator[Draft]:
    """Parameters, buffers or inputs are not on the rank's device.

    Finds: After the factory, a parameter or buffer is on a different device than the rank's: another GPU, the CPU if
        the rank has a GPU, or "meta". Also reported if ``make_batch`` returns a tensor on another GPU. A model that is
        entirely on the CPU is moved first, and so are inputs. Severity is info for tensors that are plain attributes of
        a module, which ``.to()`` does not move.
    Why: DDP refuses a model on several devices, or the forward raises "Expected all tensors to be on the same device".
        If every rank's model is on GPU 0, it runs out of memory or NCCL refuses it.
    Remedy: Call ``model.to(device)`` with the device of LOCAL_RANK before wrapping. Use ``register_buffer`` for tensors
        of a module.
    See: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    """
    for is_state in (True, False):
        off = [
            (tuple((tensor.kind, tensor.name, tensor.device) for tensor in found), rank)
            for rank in facts(recording)
            if (found := [tensor for tensor in rank.fact.misplaced if (tensor.kind != "attribute") is is_state])
        ]
        for shown, ranks in grouped(off).items():
            kind, name, device = shown[0]
            more = and_more(len(shown) - 1)
            cure = "Move the model to the device of LOCAL_RANK before wrapping it"
            if device == "meta":
                cure = "Build it on a real device, or call model.to_empty(device=DEVICE) and then initialize it"
            if kind == "input":
                cure = "Create the tensors of make_batch on the CPU or on the device of LOCAL_RANK"
            wanted = {rank.fact.device for rank in ranks}
            due = wanted.pop() if len(wanted) == 1 else "the rank's own device"
            yield proved(
                (*culprits(recording, ranks), *code(name)),
                f"{kind.capitalize()} {name}{more} of {ranks[0].fact.model} {'are' if more else 'is'} on device"
                f" {device} instead of {due}, on {on_ranks(recording, ranks)}",
                (Evidence(text=f"{kind} {name}: {device}") for kind, name, device in shown[:8]),
                in_model_code(cure if is_state else "Register it as a buffer, so that .to() moves it"),
                detail=f"On another device: {', '.join(name for _, name, _ in shown)}.",
                severity=None if is_state else Severity.INFO,
            )


@rule("DD784", "user-model-has-nothing-to-train", Consequence.FAILS, UserModel)
def nothing_to_train(recording: Recording) -> Iterator[Draft]:
    """A model has no parameter that requires a gradient.

    Finds: The factory's model has no parameters, or all are frozen.
    Why: DDP refuses it: "DistributedDataParallel is not needed when a module doesn't have any parameters that require a
        gradient".
    Remedy: Do not wrap it, or unfreeze the parameters to train before wrapping, because DDP does not see later changes.
    See: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    ranks = [rank for rank in facts(recording) if rank.fact.stopped == "trainable"]
    if not ranks:
        return
    has = ranks[0].fact.parameters
    what = f"has {has} parameters, but none requires a gradient" if has else "has no parameters"
    yield proved(
        NOBODY,
        f"The model of {ranks[0].fact.model} {what}{'' if ranks[0].fact.sharded else ': DDP refuses it'}",
        Evidence(text="parameters that require a gradient", value=0.0),
        in_model_code("Do not wrap it in DDP, or unfreeze the trained parameters before wrapping it"),
    )


@rule("DD782", "user-model-batch-norm-sees-few-samples", Consequence.RISK, UserModel)
def few_samples(recording: Recording) -> Iterator[Draft]:
    """BatchNorm statistics come from few samples, because each rank has a separate batch.

    Finds: Reports BatchNorm layers in training mode that are not SyncBatchNorm, by the smallest number of samples that
        a layer saw in a batch of ``make_batch``. Severity is warning up to 4 and info below 16.
    Why: DDP synchronizes gradients, not activations: each rank normalizes with its own batch, regardless of the total
        batch of all ranks. Only rank 0's running statistics are kept.
    Remedy: Call ``SyncBatchNorm.convert_sync_batchnorm(model)`` before wrapping (GPUs only), or use a larger batch per
        rank or GroupNorm.
    See: Wu and He, Group Normalization, 2018: error of ResNet-50 by batch a GPU
        https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """
    several = [rank.fact for rank in facts(recording) if rank.fact.world_size > 1]
    found = [fact.batch_norms for fact in several if fact.batch_norms is not None]
    least = min(found, key=lambda norms: norms.samples, default=None)
    if least is None or least.samples >= SMALL_BATCH:
        return
    layers = "1 layer" if least.count == 1 else f"{least.count} layers"
    samples = "1 sample" if least.samples == 1 else f"{least.samples} samples"
    yield likely(
        code(least.first),
        f"BatchNorm in {several[0].model} sees only {samples} per rank ({layers}, {least.first})",
        Evidence(
            text=f"samples per batch in {least.first}",
            value=float(least.samples),
            expected=float(SMALL_BATCH),
            expected_from="Group Normalization, 2018, table 2",
        ),
        in_model_code(
            "Call SyncBatchNorm.convert_sync_batchnorm(model) before wrapping, on GPUs",
            cost="one exchange among ranks per such layer, forward and backward",
            reference="generated/torch.nn.SyncBatchNorm.html",
        ),
        in_model_code(
            "Use a larger batch per rank, or GroupNorm, which needs no batch", cost="memory, or a changed model"
        ),
        detail="Each rank normalizes only with its own batch. The batch of make_batch"
        " counts, and should be as large as the job's.",
        severity=None if least.samples <= FEW_SAMPLES else Severity.INFO,
    )


_CHECK = "user_model"


@rule("DD785", "user-model-does-not-come-back", Consequence.HANGS)
def does_not_come_back(recording: Recording) -> Iterator[Draft]:
    """Code of the user's model does not return on any rank.

    Finds: Until the deadline, all ranks were stuck in the import, the factory, ``make_batch`` or the forward. If a
        single rank does not return, DD610 reports it.
    Why: The job would also be stuck: a download without network, a lock, a question on the terminal, an endless loop,
        or a collective that not all ranks call.
    Remedy: Look at the line. If a module needs data from the network, download it before the job.
    See: docs/explanation/hangs.md
    """
    for trial in recording.trials:
        if trial.judged_check != _CHECK or trial.outcome not in ("stuck", "slow"):
            continue
        left = [rank for rank in trial.evidence if not rank.done]
        inside = [step for rank in left for step in rank.steps[-1:] if step.left_at is None]
        if len(left) < len(trial.ranks) or any(step.check == _CHECK for step in inside):
            continue  # in a step of the check, a rank waits for its peers
        first = left[0]
        everyone = "Both ranks" if len(left) == 2 else f"All {len(left)} ranks"
        who = f"{everyone} have" if len(left) > 1 else f"Rank {first.rank} has"
        innermost = [frame for rank in left for frame in of_the_job(rank.stack)[-1:]]
        lines = dict.fromkeys(frame.partition(" in ")[0] for frame in innermost)
        yield likely(
            code(*list(lines)[:4]),
            f"{who} hung for {trial.waited_s:.0f} s in {called(first.stack) or 'your code'}{line_in_the_job(first)}",
            (Evidence(text=stack_in_the_job(rank)) for rank in left[:8]),
            HUNG_CODE,
            detail="No rank waits for another rank here. Each is in your code.",
        )


@rule("DD786", "user-model-fails-in-a-synchronised-step", Consequence.FAILS)
def fails_in_a_step(recording: Recording) -> Iterator[Draft]:
    """A model works on each rank alone but raises an exception in DDP.

    Finds: Reports the same exception on all ranks in the forward or backward through DDP, after each rank's own forward
        and backward succeeded. If a single rank raises, DD613 reports it.
    Why: The job fails in its first steps, for example because a parameter is marked ready twice (reentrant
        checkpointing, two forwards before a backward) or a buffer changes in place between them.
    Remedy: Follow the exception's message: use non-reentrant checkpointing, one forward per backward,
        ``static_graph=True``, or ``broadcast_buffers=False``.
    See: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for trial in recording.trials:
        if trial.judged_check != _CHECK or trial.outcome != "broken":
            continue
        is_sharded = any(step.name == "sharded_step" for rank in trial.evidence for step in rank.steps[-1:])
        way = "in fully_shard" if is_sharded else "in DDP"
        messages = [rank.raised.message for rank in trial.evidence if rank.raised and rank.raised.type == "StepFailed"]
        if not messages or len(messages) < len(trial.ranks):
            continue
        yield proved(
            NOBODY,
            f"{recording.options.model} works alone but fails {way} on every rank with {messages[0][:120]}",
            Evidence(text=messages[0][:300]),
            in_model_code("Fix the cause that the exception reports")
            if is_sharded
            else in_model_code(
                "Fix the cause that the exception reports (DDP supports one forward and backward at a time)"
            ),
            detail=f"Each rank's own forward and backward passed. {capital(way)}, the error is: {messages[0][:300]}",
        )


@rule("DD787", "user-model-takes-too-long", Consequence.KNOWN, UserModel)
def takes_too_long(recording: Recording) -> Iterator[Draft]:
    """A model's synchronized steps would not end within the check's deadline.

    Finds: Based on the time of the first forward and backward, the remaining steps would not end in time, so they were
        not started.
    Why: Completed tests are valid. Gradients, repeatability and parameters after a step were not tested.
    Remedy: Use a smaller batch from ``make_batch``, or fewer layers of the same kind.
    See: docs/how-to/test-your-own-model.md
    """
    ranks = [rank for rank in facts(recording) if rank.fact.stopped == "time"]
    if not ranks:
        return
    yield proved(
        NOBODY,
        f"{ranks[0].fact.model} is too slow to test in DDP within the time of this check",
        Evidence(text="only each rank's own forward and backward were tested"),
        in_model_code("Return a smaller batch from make_batch"),
    )
