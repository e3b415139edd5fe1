"""The faults that the jobs of job.py inject, and the truth of each: written before any reader saw their traces.

A truth is the name of a rule, followed by @ and the culprit if it is a rank: ``slow-compute@1``. A bar separates two
equally correct names, the preferred one first.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.words import pairs

Options = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A job with and without its fault; ``may`` lists additional findings that are not wrong."""

    plant: Options = field(default_factory=dict)
    job: Options = field(default_factory=dict)
    truth: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    note: str = ""

    @property
    def options(self) -> Options:
        return {**self.job, **self.plant}


NORM = {"model": "norm", "width": 256, "depth": 10, "batch": 128}
QUIET = {"ddp": {"broadcast_buffers": False}}
CNN = {"model": "cnn", "width": 32, "depth": 4, "batch": 16, **QUIET}
TEXT = {"model": "transformer", "width": 64, "depth": 2, "batch": 16}
FOUR = {"ranks": 4, "width": 256, "depth": 6, "batch": 32}

HEALTHY = {
    "healthy_mlp": Case(),
    "healthy_norm": Case(job={"model": "norm", "width": 512, "depth": 3, "batch": 128}),
    "healthy_cnn": Case(job={**CNN, "batch": 32}),
    "healthy_text": Case(job={**TEXT, "width": 128, "depth": 3}),
    "healthy_four": Case(job=FOUR),
    "healthy_four_text": Case(job={**TEXT, "ranks": 4, "batch": 8}),
    "healthy_workers": Case(job={"workers": 2, "loading": {"*": 1}, "width": 1024}),
    "healthy_no_sync": Case(job={"accumulate": 4, "no_sync": True}),
    "healthy_needed": Case(job={"batch": 128, "unused": True, "ddp": {"find_unused_parameters": True}}),
    "healthy_item": Case(job={"item": 5}, note="reading a number costs nothing on a CPU"),
    "healthy_stack": Case(job={"stack": True, "steps": 3}),
}

LATE = {
    "slow_compute_mlp": Case({"passes": {"1": 2}}, {}, ("slow-compute@1",)),
    "slow_compute_root": Case({"passes": {"0": 2}}, NORM, ("slow-compute@0",), ("buffers-broadcast",)),
    "slow_compute_norm": Case({"passes": {"1": 2}}, NORM, ("slow-compute@1",), ("buffers-broadcast",)),
    "slow_compute_cnn": Case({"passes": {"0": 2}}, CNN, ("slow-compute@0",)),
    "slow_compute_four_text": Case({"passes": {"3": 4}}, {**TEXT, "ranks": 4, "batch": 8}, ("slow-compute@3",)),
    "batch_mlp": Case({"samples": {"1": 256}}, {}, ("larger-batch@1",)),
    "batch_cnn": Case({"samples": {"0": 48}}, CNN, ("larger-batch@0",)),
    "batch_text": Case({"samples": {"0": 48}}, TEXT, ("larger-batch@0",)),
    "batch_four": Case({"samples": {"2": 320}}, FOUR, ("larger-batch@2",)),
    "data_mlp": Case({"loading": {"0": 40}}, {}, ("slow-data-loading@0",)),
    "data_cnn": Case({"loading": {"1": 60}}, CNN, ("slow-data-loading@1",)),
    "data_four_text": Case({"loading": {"1": 80}}, {**TEXT, "ranks": 4, "batch": 8}, ("slow-data-loading@1",)),
    "data_worker": Case({"loading": {"1": 90}}, {"workers": 1}, ("slow-data-loading@1",)),
    "save_mlp": Case({"save": {"0": 2}}, {"width": 1024, "steps": 6}, ("checkpoint-in-step|pauses@0",)),
    "save_stack": Case({"save": {"0": 2}}, {"width": 1024, "steps": 4, "stack": True}, ("checkpoint-in-step@0",)),
    "save_text": Case({"save": {"1": 3}}, {**TEXT, "width": 256, "steps": 7}, ("checkpoint-in-step|pauses@1",)),
    "save_four": Case({"save": {"2": 2}}, {**FOUR, "width": 640, "steps": 6}, ("checkpoint-in-step|pauses@2",)),
    "host_mlp": Case({"python": {"1": 40}}, {}, ("host-bound-rank@1",)),
    "host_text": Case({"python": {"0": 60}}, TEXT, ("host-bound-rank@0",)),
    "host_four": Case({"python": {"3": 80}}, FOUR, ("host-bound-rank@3",)),
    "host_hog": Case({"hog": [1]}, {}, ("host-bound-rank|slow-compute@1",), note="a busy process has its core, too"),
    "host_hog_cnn": Case({"hog": [0]}, CNN, ("host-bound-rank|slow-compute@0",)),
    "pause_mlp": Case({"pause": {"1": [2, 150]}}, {"steps": 8}, ("pauses@1",)),
    "pause_cnn": Case({"pause": {"0": [3, 250]}}, {**CNN, "steps": 8}, ("pauses@0",)),
    "pause_collect": Case({"collect": {"1": 1}}, {"steps": 6}, ("pauses@1",), note="garbage collection"),
    "pause_four": Case({"collect": {"2": 2}}, {**FOUR, "steps": 6}, ("pauses@2",)),
}

STEP = {
    "input_mlp": Case({"loading": {"*": 40}}, {}, ("input-bound",)),
    "input_cnn": Case({"loading": {"*": 60}}, CNN, ("input-bound",)),
    "input_four": Case({"loading": {"*": 60}}, FOUR, ("input-bound",)),
    "input_worker": Case(
        {"loading": {"*": 90}},
        {"workers": 1},
        ("input-bound|slow-data-loading",),
        ("slow-data-loading@0", "slow-data-loading@1"),
        "both workers are too slow; who is a little behind waits for its worker, the other one for that rank",
    ),
    "tiny_mlp": Case({"ddp": {"bucket_cap_mb": 0.1}}, {"width": 160, "depth": 40, "batch": 32}, ("tiny-buckets",)),
    "tiny_text": Case({"ddp": {"bucket_cap_mb": 0.05}}, {**TEXT, "width": 128, "depth": 6}, ("tiny-buckets",)),
    "tiny_four": Case({"ddp": {"bucket_cap_mb": 0.05}}, {**FOUR, "width": 128, "depth": 24}, ("tiny-buckets",)),
    "tiny_norm": Case(
        {"ddp": {"bucket_cap_mb": 0.1, "broadcast_buffers": False}},
        {"model": "norm", "width": 200, "depth": 30, "batch": 32, **QUIET},
        ("tiny-buckets",),
    ),
    "one_mlp": Case({"ddp": {"bucket_cap_mb": 1000}}, {"width": 768}, ("no-overlap",)),
    "one_text": Case({"ddp": {"bucket_cap_mb": 1000}}, {**TEXT, "width": 256, "depth": 4, "batch": 8}, ("no-overlap",)),
    "one_four": Case({"ddp": {"bucket_cap_mb": 1000}}, {**FOUR, "width": 512}, ("no-overlap",)),
    "unused_mlp": Case({"ddp": {"find_unused_parameters": True}}, {"depth": 12}, ("find-unused-parameters-needless",)),
    "unused_text": Case({"ddp": {"find_unused_parameters": True}}, TEXT, ("find-unused-parameters-needless",)),
    "unused_four": Case({"ddp": {"find_unused_parameters": True}}, FOUR, ("find-unused-parameters-needless",)),
    "accumulate_mlp": Case({"no_sync": False}, {"accumulate": 4, "batch": 16, "no_sync": True}, ("no-sync-missing",)),
    "accumulate_text": Case(
        {"no_sync": False}, {**TEXT, "width": 128, "accumulate": 3, "batch": 8, "no_sync": True}, ("no-sync-missing",)
    ),
    "accumulate_four": Case({"no_sync": False}, {**FOUR, "accumulate": 2, "no_sync": True}, ("no-sync-missing",)),
    "optimizer_mlp": Case(
        {"optimizer": "loop"}, {"depth": 12, "batch": 16, "optimizer": "fused"}, ("optimizer-bound",), ("no-overlap",)
    ),
    "optimizer_text": Case(
        {"optimizer": "loop"},
        {**TEXT, "width": 256, "depth": 4, "batch": 2, "optimizer": "fused"},
        ("optimizer-bound",),
    ),
    "optimizer_four": Case(
        {"optimizer": "loop"},
        {**FOUR, "depth": 24, "width": 160, "batch": 8, "optimizer": "fused"},
        ("optimizer-bound",),
    ),
    "reductions_mlp": Case({"reductions": 12}, {"width": 256}, ("small-collectives",)),
    "reductions_cnn": Case({"reductions": 20}, {**CNN, "batch": 8}, ("small-collectives",)),
    "reductions_four": Case({"reductions": 12}, FOUR, ("small-collectives",)),
    "buffers_norm": Case(
        {"ddp": {}}, {"model": "norm", "width": 256, "depth": 30, "batch": 32, **QUIET}, ("buffers-broadcast",)
    ),
    "buffers_cnn": Case(
        {"ddp": {}}, {"model": "cnn", "width": 16, "depth": 20, "batch": 4, **QUIET}, ("buffers-broadcast",)
    ),
    "buffers_four": Case(
        {"ddp": {}}, {**FOUR, "model": "norm", "width": 96, "depth": 30, "batch": 16, **QUIET}, ("buffers-broadcast",)
    ),
    "view": Case(
        {"ddp": {}}, {"width": 1024, "ddp": {"gradient_as_bucket_view": True}}, (), ("*",), "for its gain alone"
    ),
}

BOTH = {
    "two_compute_tiny": Case(
        {"passes": {"1": 2}, "ddp": {"bucket_cap_mb": 0.1}},
        {"width": 160, "depth": 30, "batch": 32},
        ("slow-compute@1", "tiny-buckets"),
    ),
    "two_data_optimizer": Case(
        {"loading": {"0": 60}, "optimizer": "loop"},
        {"depth": 12, "batch": 16, "optimizer": "fused"},
        ("slow-data-loading@0", "optimizer-bound"),
    ),
    "two_batch_unused": Case(
        {"samples": {"1": 256}, "ddp": {"find_unused_parameters": True}},
        {},
        ("larger-batch@1", "find-unused-parameters-needless"),
    ),
    "two_input_reductions": Case(
        {"loading": {"*": 40}, "reductions": 30}, {"width": 256}, ("input-bound", "small-collectives")
    ),
    "two_host_accumulate": Case(
        {"python": {"0": 15}, "no_sync": False},
        {"accumulate": 4, "batch": 16, "no_sync": True},
        ("host-bound-rank@0", "no-sync-missing"),
    ),
    "two_pause_buffers": Case(
        {"pause": {"1": [2, 200]}, "ddp": {}},
        {"model": "norm", "width": 256, "depth": 30, "batch": 32, "steps": 8, **QUIET},
        ("pauses@1", "buffers-broadcast"),
    ),
    "two_barrier_compute": Case({"barrier": True, "passes": {"1": 1}}, {}, ("barrier-in-step", "slow-compute@1")),
    "two_barrier_batch": Case({"barrier": True, "samples": {"0": 48}}, CNN, ("barrier-in-step", "larger-batch@0")),
    "two_barrier_data": Case({"barrier": True, "loading": {"2": 80}}, FOUR, ("barrier-in-step", "slow-data-loading@2")),
    "two_culprits": Case(
        {"passes": {"1": 30}, "loading": {"3": 25}}, FOUR, ("slow-compute@1",), ("slow-data-loading@3",)
    ),
}

#: Newer options; the truth was decided together with each.
NEW = {
    "validation_on_one": Case(
        {"validate": {"1": [2, 12]}},
        {"steps": 6},
        ("slow-compute@1",),
        note="every second step rank 1 runs twelve batches without gradients: more work, and its loader has a share",
    ),
    "clip_and_read": Case({"clip": True}, {}, (), (), "the norm is read with .item() on all ranks: nothing on a CPU"),
    "random_lengths": Case(
        {"lengths": True},
        {**TEXT, "batch": 32},
        (),
        ("larger-batch", "uneven-work"),
        "sequences of 8 to 56 tokens, drawn by each rank: now one is late, now the other; no rank is the culprit",
    ),
    "log_one_number": Case(
        {"reductions": 1}, {"batch": 128}, (), (), "one all_reduce of the learning rate costs little"
    ),
    "frozen_part": Case({"frozen": 4}, {"width": 768}, (), (), "layers that are not trained are in no bucket"),
    "own_hook": Case({"hook": "own"}, {}, (), (), "gradients travel as halves by a hook of the user's"),
    "workers_on_one": Case(
        {"workers_of": {"0": 2, "1": 0}, "loading": {"*": 30}},
        {"workers": 2},
        ("slow-data-loading@1",),
        note="rank 1 was started without workers",
    ),
    "bucket_list": Case(
        {"ddp": {"bucket_cap_mb_list": [1] * 3}},
        {"width": 512, "depth": 12},
        (),
        (),
        "three caps of 1 MiB, then the last again",
    ),
    "uneven_micro_batches": Case(
        {"micro": {"1": 5}},
        {"accumulate": 2, "no_sync": True, "batch": 32},
        ("slow-compute@1",),
        note="five micro batches against two: more work",
    ),
    "average_on_one": Case(
        {"average": {"0": 2}},
        {"width": 768, "depth": 12, "batch": 32},
        ("slow-compute@0",),
        note="a moving average of the weights after the step: operators that the others do not have",
    ),
    "augment_everywhere": Case(
        {"augment": {"*": 60}},
        {"batch": 32},
        ("input-bound",),
        note="operators on samples, in the loader of the main thread",
    ),
    "augment_on_one": Case({"augment": {"1": 60}}, {"batch": 32}, ("slow-data-loading@1",)),
    "save_everywhere": Case(
        {"save": {"*": 2}},
        {"width": 1024, "steps": 6},
        (),
        ("checkpoint-in-step", "pauses"),
        "all pause at once: nobody is late",
    ),
    "pairs_with_slow_rank": Case(
        {"groups": True, "passes": {"2": 4}}, FOUR, ("slow-compute@2",), ("small-collectives",)
    ),
    "log_on_one": Case(
        {"pause": {"0": [1, 40]}},
        {"stack": True, "steps": 4},
        ("pauses|host-bound-rank@0",),
        note="logs and plots after each step",
    ),
    "anomaly_on_one": Case(
        {"anomaly": {"1": True}},
        {**TEXT, "depth": 6},
        ("host-bound-rank|slow-compute@1",),
        note="detect_anomaly was left on: a traceback for each operator, and checks of each gradient",
    ),
    "recompute_on_one": Case({"recompute": {"1": True}, "passes": {"1": 1}}, {}, ("slow-compute@1",)),
    "recompute_everywhere": Case({"recompute": {"*": True}}, {}, (), (), "activation checkpointing on all ranks"),
    "siamese": Case({"twice": True}, {}, (), (), "two passes and one backward: no_sync has nothing to save"),
    "rival": Case({"rival": True}, {}, (), (), "two models with an optimizer each: two backwards, both needed"),
    "gather_outputs": Case(
        {"gather": True}, {"batch": 128}, (), (), "contrastive loss: outputs of all ranks in forward"
    ),
    "local_steps": Case({"local": 2}, {"steps": 6}, (), (), "ranks synchronize in every second step"),
    "no_ddp": Case(
        {"manual": True}, {"width": 768}, ("no-overlap",), note="one all_reduce of everything after backward"
    ),
    "sharded_optimizer": Case(
        {"optimizer": "zero"},
        {"batch": 128},
        (),
        ("optimizer-bound", "small-collectives"),
        "its broadcasts follow the step",
    ),
    "metrics_as_objects": Case(
        {"objects": True}, {"batch": 256, "width": 768}, (), ("small-collectives",), "all_gather_object once a step"
    ),
    "static_host": Case(
        {"ddp": {"static_graph": True, "gradient_as_bucket_view": True}, "python": {"0": 40}},
        {},
        ("host-bound-rank@0",),
    ),
    "hook_data": Case({"hook": "fp16_compress_hook", "loading": {"1": 40}}, {}, ("slow-data-loading@1",)),
    "no_shapes_batch": Case(
        {"shapes": False, "samples": {"1": 256}},
        {},
        ("slow-compute|larger-batch@1",),
        note="without shapes a batch has no size",
    ),
    "unscheduled_pause": Case({"scheduled": False, "pause": {"1": [2, 150]}}, {"steps": 8}, ("pauses@1",)),
}

THREE = {"ranks": 3, "width": 384, "batch": 32}
TINY = {"bucket_cap_mb": 0.1}

#: Written and made after the rules had been mended by all others, and judged once.
LATER = {
    "three_healthy": Case(job=THREE),
    "three_text": Case({"passes": {"1": 4}}, {**TEXT, "ranks": 3, "batch": 8}, ("slow-compute@1",)),
    "three_data": Case({"loading": {"2": 50}}, THREE, ("slow-data-loading@2",)),
    "three_tiny": Case({"ddp": {"bucket_cap_mb": 0.05}}, {**THREE, "width": 128, "depth": 24}, ("tiny-buckets",)),
    "batch_view": Case(
        {"samples": {"1": 640}, "ddp": {"gradient_as_bucket_view": True, "broadcast_buffers": False}},
        NORM,
        ("larger-batch@1",),
    ),
    "save_fused": Case(
        {"save": {"1": 2}}, {"width": 768, "optimizer": "fused", "steps": 6}, ("checkpoint-in-step|pauses@1",)
    ),
    "pause_text": Case({"pause": {"0": [2, 120]}}, {**TEXT, "stack": True, "steps": 6}, ("pauses@0",)),
    "host_cnn": Case({"python": {"1": 50}}, CNN, ("host-bound-rank@1",)),
    "input_text": Case({"loading": {"*": 50}}, TEXT, ("input-bound",)),
    "hook_accumulate": Case(
        {"no_sync": False},
        {"accumulate": 3, "batch": 32, "hook": "fp16_compress_hook", "no_sync": True},
        ("no-sync-missing",),
    ),
    "frozen_slow": Case({"passes": {"0": 3}}, {"frozen": 3, "width": 640}, ("slow-compute@0",)),
    "validate_all": Case({"validate": {"*": [2, 6]}}, {"steps": 6}, note="all validate at once"),
    "collect_all": Case({"collect": {"*": 2}}, {"steps": 6}, (), ("pauses",), "all pause at once"),
    "average_all": Case({"average": {"*": 1}}, {"width": 640}, note="every rank averages its weights"),
    "barrier_alone": Case({"barrier": True}, {}, ("barrier-in-step",)),
    "augment_four": Case({"augment": {"3": 80}}, FOUR, ("slow-data-loading@3",)),
    "rival_slow": Case({"rival": True, "passes": {"1": 2}}, {}, ("slow-compute@1",)),
    "local_pause": Case({"local": 2, "pause": {"1": [2, 150]}}, {"steps": 8}, ("pauses@1",)),
    "objects_four": Case(
        {"objects": True, "loading": {"0": 60}}, FOUR, ("slow-data-loading@0",), ("small-collectives",)
    ),
    "two_tiny_host": Case(
        {"python": {"1": 80}, "ddp": TINY},
        {"width": 160, "depth": 30, "batch": 32},
        ("host-bound-rank@1", "tiny-buckets"),
    ),
}

CASES = {**HEALTHY, **LATE, **STEP, **BOTH, **NEW, **LATER}

#: Two ranks that share one H100 over NCCL: communication takes most of each step, so much that is planted costs little.
WIDE = {"device": "cuda", "width": 1024, "depth": 8, "batch": 256}
DEEP = {"device": "cuda", "width": 256, "depth": 40, "batch": 256}
WORDS = {"device": "cuda", "model": "transformer", "width": 256, "depth": 4, "batch": 64}
SLOW_LINK = ("communication-exposed", "no-overlap")
GPU = {
    "healthy": Case({}, WIDE, (), SLOW_LINK),
    "healthy_tf": Case({}, WORDS, (), SLOW_LINK),
    "no_shapes": Case({"shapes": False, "item": 1}, WIDE, (), ("sync-points", *SLOW_LINK)),
    "stack": Case({"stack": True, "item": 2, "steps": 3}, WIDE, (), ("sync-points", *SLOW_LINK)),
    "one_rank": Case({"ranks": 1}, WIDE, (), ("input-bound",), "the loader has a quarter of its step of 4.5 ms"),
    "item": Case({"item": 4}, WIDE, (), ("sync-points", *SLOW_LINK), "was as fast as without"),
    "item_none": Case({}, WIDE, (), SLOW_LINK),
    "tiny": Case({"ddp": {"bucket_cap_mb": 0.1}}, DEEP, ("tiny-buckets",), SLOW_LINK),
    "tiny_default": Case({}, DEEP, (), SLOW_LINK),
    "one_bucket": Case({"ddp": {"bucket_cap_mb": 1000}}, WIDE, (), SLOW_LINK, "2 % slower than by default"),
    "unused": Case({"ddp": {"find_unused_parameters": True}}, WORDS, ("find-unused-parameters-needless",), SLOW_LINK),
    "unused_base": Case({}, WORDS, (), SLOW_LINK),
    "accum": Case({"accumulate": 4}, {**WIDE, "batch": 64}, ("no-sync-missing",), SLOW_LINK),
    "accum_no_sync": Case({"accumulate": 4, "no_sync": True}, {**WIDE, "batch": 64}, (), SLOW_LINK),
    "adam_loop": Case({"optimizer": "loop"}, DEEP, (), ("optimizer-bound", *SLOW_LINK), "was as fast as with foreach"),
    "adam": Case({"optimizer": "adamw"}, DEEP, (), SLOW_LINK),
    "norm": Case({"model": "norm"}, {**DEEP, "width": 512, "depth": 30}, (), ("buffers-broadcast", *SLOW_LINK)),
    "norm_quiet": Case({"model": "norm", **QUIET}, {**DEEP, "width": 512, "depth": 30}, (), SLOW_LINK),
    "view": Case({"ddp": {"gradient_as_bucket_view": True}}, WIDE, (), SLOW_LINK),
    "reductions": Case({"reductions": 8}, WIDE, ("small-collectives",), ("sync-points", *SLOW_LINK)),
    "barrier": Case({"barrier": True}, WIDE, ("barrier-in-step",), SLOW_LINK),
    "pageable": Case({"workers": 1, "batch": 2048}, WIDE, (), ("copies-hold-up-the-host", *SLOW_LINK)),
    "big_pinned_nb": Case({"workers": 1, "batch": 2048, "pin": True, "non_blocking": True}, WIDE, (), SLOW_LINK),
    "host_bound_all": Case({"python": {"*": 30}}, WIDE, (), ("launches-late", *SLOW_LINK), "no rank is to blame"),
    "slow_data": Case({"loading": {"1": 40}}, WIDE, ("slow-data-loading@1",), SLOW_LINK),
    "slow_data_all": Case({"loading": {"*": 40}}, WIDE, ("input-bound",), SLOW_LINK),
    "slow_data_worker": Case({"loading": {"*": 40}, "workers": 2, "pin": True}, WIDE, (), ("input-bound", *SLOW_LINK)),
    "slow_compute": Case({"passes": {"1": 2}}, WIDE, (), ("slow-compute@1", *SLOW_LINK), "7 % slower than without"),
    "slow_compute_tf": Case({"passes": {"0": 2}}, WORDS, ("slow-compute@0",), SLOW_LINK),
    "slow_rank_and_tiny": Case(
        {"passes": {"1": 1}, "ddp": {"bucket_cap_mb": 0.1}}, DEEP, ("tiny-buckets",), ("slow-compute@1", *SLOW_LINK)
    ),
    "larger_batch": Case({"samples": {"1": 192}}, WORDS, (), ("larger-batch@1", *SLOW_LINK), "no slower than without"),
    "pause": Case({"pause": {"0": [3, 120]}}, WIDE, ("pauses@0",), SLOW_LINK),
    "save": Case({"save": {"0": 3}, "steps": 7}, WIDE, ("checkpoint-in-step|pauses@0",), SLOW_LINK),
}
#: With and without, each its own case.
GPU_PAIRS = pairs("""
    item=item_none tiny=tiny_default adam_loop=adam unused=unused_base norm=norm_quiet accum=accum_no_sync
    healthy=view slow_data_all=slow_data_worker barrier=healthy reductions=healthy one_bucket=healthy
    pageable=big_pinned_nb
""")
