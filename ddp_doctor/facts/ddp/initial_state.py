"""One rank's model before and after wrapping, as the probe writes it and the rules read it."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge.ddp.manifests import Manifested
from ddp_doctor.model.fact import Fact


class InitialState(Fact):
    """What one rank's model is made of, and the fingerprints of its values.

    ``before`` and ``after`` wrapping: name -> 16 digits of a SHA-256 over the bits; both are empty where the
    ranks' models differ, for then it was not wrapped. ``source_rank`` is the rank that DDP broadcasts from.
    ``same_seed``: one fingerprint of a model made from a seed that all ranks share, and never wrapped.
    """

    KIND: ClassVar[str] = "initial-state/1"

    world_size: int
    source_rank: int
    model: Manifested
    before: dict[str, str] = Field(default_factory=dict)
    after: dict[str, str] = Field(default_factory=dict)
    same_seed: str = ""
    wrap_s: float | None = None
    wrap_without_sync_s: float | None = None  # None where this torch cannot wrap without the broadcast
    size_bytes: int = 0
