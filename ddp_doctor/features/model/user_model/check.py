"""user_model: whether the user's own model, from ``--model package.module:factory``, works with DDP.

Raw input: the user's code::

    def make():                                   # in net.py: ddp-doctor run --model net:make
        return Net(), lambda step: torch.randn(8, 3, 32, 32)

    def forward(self, x):                         # of Net
        x = self.body(x)
        if dist.get_rank() == 0:
            dist.all_reduce(self.seen)            # net.py:31: the other ranks never call it
        return self.head(x)

Each rank first builds the model and runs a forward and a backward alone. Over the control store, the ranks compare
which parameters got a gradient and which submodules were called. Only then the model is wrapped in DDP, so the check
reports a hang before it occurs. Three synchronized steps follow, whose gradients are compared with the float64 mean of
the ranks' own gradients. A model that the factory passed to fully_shard (FSDP2) is not wrapped: its steps are compared
with the steps of one rank alone.

Why it matters: no other check sees the user's model. Only the ranks import the module, never the agent, and only
because the user named it.
"""

from collections.abc import Iterator

from ddp_doctor.features.model.user_model.facts import UserModel
from ddp_doctor.features.model.user_model.probing.sharded_probe import ShardedProbe
from ddp_doctor.features.model.user_model.rules import building, gradients, sharded
from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.check import USER_MODEL, Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in

#: Seconds for the import, the construction and nine forwards. A pass that would not end in time is not started.
DEADLINE_S = 60.0


def probe(ctx: RankContext) -> UserModel:
    """Build the user's model on this rank and run it in DDP with the other ranks."""
    return ShardedProbe(ctx).run()


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield how DDP packs the gradients, and the seconds of the slowest rank in a synchronized step."""
    facts = [rank.fact for rank in recording.facts(UserModel)]
    labels: dict[str, str | int | float] = {"ranks": len(facts)}
    packed = [(fact.buckets, fact.gradient_bytes) for fact in facts if fact.buckets is not None]
    for buckets, gradient_bytes in packed[:1]:
        for name, value, unit in (
            ("gradient_bytes", gradient_bytes, "B"),
            ("buckets", buckets.count, ""),
            ("largest_bucket", buckets.largest_bytes, "B"),
        ):
            yield Measurement(name=f"user_model_{name}", value=float(value), unit=unit, labels=labels)
        for number, bucket in enumerate(buckets.buckets):
            of_bucket = {"bucket": number, "buckets": buckets.count, **bucket.model_dump(exclude={"bytes"})}
            yield Measurement(name="user_model_bucket", value=float(bucket.bytes), unit="B", labels=of_bucket)
    for name in ("forward", "backward"):
        slowest = max((getattr(fact, f"{name}_s") for fact in facts), default=0.0)
        if slowest:
            yield Measurement(name=f"user_model_{name}", value=slowest, unit="s", labels=labels)


CHECK = Check(
    id=USER_MODEL,
    title="Your own model, in DDP or fully_shard",
    where=Where.RANK,
    probe=probe,
    facts=(UserModel,),
    rules=rules_in(building, gradients, sharded),
    cost_s=1.0,
    is_essential=True,
    deadline_s=DEADLINE_S,
    still_s=deadlines.STILL_S,
    needs_model=True,
    measurements=measurements,
)
