"""What came of the user's own model where the factory has sharded it with fully_shard (FSDP2)."""

from ddp_doctor.facts.ddp.names import Names
from ddp_doctor.model.base import Frozen


class Mesh(Frozen):
    """A DeviceMesh: the names and sizes of its dimensions, and its global ranks in the order that the mesh has."""

    names: tuple[str, ...] = ()  # none where its maker gave none
    shape: tuple[int, ...]
    ranks: tuple[int, ...]


class Off(Frozen):
    """A parameter whose shard on this rank is not, after a step, what one rank alone makes of the same batches.

    Each figure is a mean over the elements of the shard; ``allowed`` is how far rounding may take it.
    """

    parameter: str
    error: float | None  # None where it is no finite number
    allowed: float
    moved: float  # how far one rank alone moves it in these steps
    unchanged: bool = False  # not one bit of it changed


class ShardedModel(Frozen):
    """A model in fully_shard, on one rank. What is None or empty was not looked at, or nothing was found."""

    root: bool  # the model itself is a unit
    unit_count: int  # modules that were given to fully_shard
    meshes: tuple[Mesh, ...] = ()  # those that the parameters are sharded over
    reduces_unused: bool = False  # a gradient that a rank does not have counts as zero, in all units
    outside: Names = Names()  # trainable parameters that no unit shards
    apart: Names = Names()  # trainable parameters that are, before the first step, not those of the first rank
    optimizer: str = ""  # the class
    optimizer_given: bool = False  # by the factory
    step_given: bool = False
    stale: int = 0  # tensors that the optimizer holds and the model does not have
    stale_of: int = 0  # … of so many that it holds
    steps: int = 0  # synchronized ones
    loss: float | None = None  # of the last of them, on this rank
    loss_alone: float | None = None  # what the unsharded copy gives for the same batch
    not_compared: str | None = None  # why the steps were not held against those of one rank alone
    drifted: Names = Names()  # parameters that the optimizer or the step change otherwise here than on the first rank
    off_step: int | None = None  # the first step after which something is off on some rank
    off: tuple[Off, ...] = ()
    off_count: int = 0
    saved: bool = False  # and loaded, by torch.distributed.checkpoint
    not_saved: str | None = None  # why that was not tried
    save_trouble: str | None = None  # what it raised
    not_loaded: Names = Names()  # trainable parameters that are not, bit for bit, what was saved
