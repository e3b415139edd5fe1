"""Codes of rules that have gone: no rule is given one of them again, for old reports and scripts name them."""

from typing import NamedTuple


class Retired(NamedTuple):
    """The name that the rule had, and what finds the fault now, or why nothing does."""

    name: str
    instead: str


_MODE = "DD718 names the mode."
_NORM = "DD719 finds it."
_SCALER = "DD730 finds it."
_SHARDS = "DD753 finds it by the shares of all ranks."

RETIRED = {
    "DD705": Retired("gradient-wrong-in-several-buckets", _MODE),
    "DD706": Retired("bucket-view-gradient-wrong", _MODE),
    "DD707": Retired("static-graph-gradient-wrong", _MODE),
    "DD708": Retired("unused-parameter-gradient-wrong", _MODE),
    "DD709": Retired("accumulated-gradient-wrong", _MODE),
    "DD710": Retired("gradient-of-twice-used-parameter-wrong", _MODE),
    "DD713": Retired("batch-norm-statistics-wrong", _NORM),
    "DD714": Retired("sync-batch-norm-not-synchronised", _NORM),
    "DD715": Retired("buffers-broadcast-though-off", "DD711 finds it."),
    "DD716": Retired("reassigned-buffer-not-broadcast", "DD711 finds it."),
    "DD717": Retired("batch-normalised-with-other-statistics", _NORM),
    "DD720": Retired("checkpointed-gradient-wrong", _MODE),
    "DD721": Retired("compressed-gradient-wrong", _MODE),
    "DD722": Retired("powersgd-gradient-wrong", _MODE),
    "DD724": Retired(
        "branches-differ-without-find-unused-parameters",
        "DD723 finds a DDP that loses find_unused_parameters=True; DDL128 and `--model` find it in your own code.",
    ),
    "DD725": Retired(
        "gradients-are-no-views-of-their-bucket",
        "It went: the values were right, and the copy costs memory alone. DD718 finds a wrong value.",
    ),
    "DD731": Retired("scales-differ-between-ranks", _SCALER),
    "DD732": Retired("infinite-gradient-does-not-skip-the-step", _SCALER),
    "DD733": Retired("autocast-gradient-wrong", _MODE),
    "DD734": Retired("half-precision-mean-overflows", _MODE),
    "DD735": Retired("half-precision-mean-wrong", _MODE),
    "DD736": Retired(
        "half-precision-mean-loses-shares", "It went: rounding is a property of the format, and of no machine."
    ),
    "DD737": Retired("weights-differ-after-scaled-steps", "DD726 finds the gradients that differ."),
    "DD738": Retired("precision-not-tested", "DD727 says it."),
    "DD750": Retired("sampler-of-another-rank", f"{_SHARDS} DDL161 reads it in scripts."),
    "DD751": Retired("data-set-lengths-differ", _SHARDS),
    "DD752": Retired("sampler-seeds-differ", _SHARDS),
    "DD754": Retired(
        "order-stays-after-set-epoch",
        "DD753 finds it where some ranks shuffle anew and others do not, DDL122 a script without set_epoch().",
    ),
    "DD755": Retired("ranks-take-different-numbers-of-steps", f"{_SHARDS} DDL155 reads it in scripts."),
    "DD756": Retired("join-gives-a-wrong-mean", _MODE),
    "DD757": Retired("one-seed-gives-different-numbers", "DD753 finds it, where it matters: in the ranks' shards."),
    "DD758": Retired(
        "own-seeds-give-one-stream",
        "It went: no machine makes it, and DDP does not rest on it. DD759 looks at the seeds.",
    ),
}

#: Checks that have gone, and the check that looks at it now.
RETIRED_CHECKS = dict.fromkeys(("gradient_modes", "mixed_precision", "data_sharding"), "ddp_modes")
