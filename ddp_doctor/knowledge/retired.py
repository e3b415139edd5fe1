"""Codes of removed rules. They are never used again, because old reports and scripts contain them."""

from typing import NamedTuple


class Retired(NamedTuple):
    """The name of a removed rule, and its replacement or the reason why it has none."""

    name: str
    instead: str


_TORCH = "It tested torch's own guarantees. `run --model` compares the gradients of your own model."
_NORM = "DD719 finds it."
_SHARDS = "It tested torch's own sampler. DDL121, DDL122 and DDL161 find wrong use in scripts."

_OF_DDP = {
    "DD705": "gradient-wrong-in-several-buckets",
    "DD706": "bucket-view-gradient-wrong",
    "DD707": "static-graph-gradient-wrong",
    "DD708": "unused-parameter-gradient-wrong",
    "DD709": "accumulated-gradient-wrong",
    "DD710": "gradient-of-twice-used-parameter-wrong",
    "DD718": "gradient-of-a-mode-wrong",
    "DD720": "checkpointed-gradient-wrong",
    "DD721": "compressed-gradient-wrong",
    "DD722": "powersgd-gradient-wrong",
    "DD723": "ddp-fails-in-a-mode",
    "DD724": "branches-differ-without-find-unused-parameters",
    "DD725": "gradients-are-no-views-of-their-bucket",
    "DD726": "gradients-of-a-mode-differ-between-ranks",
    "DD727": "modes-not-tested",
    "DD730": "ranks-skip-scaled-steps-apart",
    "DD731": "scales-differ-between-ranks",
    "DD732": "infinite-gradient-does-not-skip-the-step",
    "DD733": "autocast-gradient-wrong",
    "DD734": "half-precision-mean-overflows",
    "DD735": "half-precision-mean-wrong",
    "DD736": "half-precision-mean-loses-shares",
    "DD737": "weights-differ-after-scaled-steps",
    "DD738": "precision-not-tested",
    "DD756": "join-gives-a-wrong-mean",
    "DD757": "one-seed-gives-different-numbers",
    "DD758": "own-seeds-give-one-stream",
    "DD759": "environment-seeds-all-ranks-alike",
}
_OF_SAMPLERS = {
    "DD750": "sampler-of-another-rank",
    "DD751": "data-set-lengths-differ",
    "DD752": "sampler-seeds-differ",
    "DD753": "shards-overlap-or-leave-out",
    "DD754": "order-stays-after-set-epoch",
    "DD755": "ranks-take-different-numbers-of-steps",
}

RETIRED = {
    **{code: Retired(name, _TORCH) for code, name in _OF_DDP.items()},
    **{code: Retired(name, _SHARDS) for code, name in _OF_SAMPLERS.items()},
    "DD763": Retired("checkpoint-of-another-rank", _TORCH),
    "DD765": Retired(
        "sharded-checkpoint-does-not-load",
        "It tested torch's own code. `run --model` saves and loads your own sharded model.",
    ),
    "DD713": Retired("batch-norm-statistics-wrong", _NORM),
    "DD714": Retired("sync-batch-norm-not-synchronised", _NORM),
    "DD715": Retired("buffers-broadcast-though-off", "DD711 finds it."),
    "DD716": Retired("reassigned-buffer-not-broadcast", "DD711 finds it."),
    "DD717": Retired("batch-normalised-with-other-statistics", _NORM),
}

#: Removed checks, which old recordings contain, and the check most similar to each.
RETIRED_CHECKS = dict.fromkeys(("ddp_modes", "gradient_modes", "mixed_precision", "data_sharding"), "gradient_sync")
