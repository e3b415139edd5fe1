"""Results for a user's model that the factory sharded with fully_shard (FSDP2)."""

from ddp_doctor.features.model.user_model.names import Names
from ddp_doctor.model.base import Frozen


class Mesh(Frozen):
    """A DeviceMesh: the names and sizes of its dimensions, and its global ranks in mesh order."""

    names: tuple[str, ...] = ()  # empty if the mesh was made without names
    shape: tuple[int, ...]
    ranks: tuple[int, ...]


class Off(Frozen):
    """A parameter whose shard on this rank, after a step, differs from the result of one rank with the same batches.

    Each figure is a mean over the elements of the shard. ``allowed`` is the error that rounding may cause.
    """

    parameter: str
    error: float | None  # None if not finite
    allowed: float
    moved: float  # how far the steps move it on one rank
    unchanged: bool = False  # no bit of it changed


class ShardedModel(Frozen):
    """A model with fully_shard on one rank. None or empty: not checked, or nothing found."""

    root: bool  # the model itself is a unit
    unit_count: int  # modules passed to fully_shard
    meshes: tuple[Mesh, ...] = ()  # that the parameters are sharded over
    reduces_unused: bool = False  # a gradient missing on a rank counts as zero, in all units
    outside: Names = Names()  # trainable parameters that no unit shards
    apart: Names = Names()  # trainable parameters that differ from the first rank's before the first step
    optimizer: str = ""  # the class
    optimizer_given: bool = False  # by the factory
    step_given: bool = False
    stale: int = 0  # tensors that the optimizer holds and the model does not have
    stale_of: int = 0  # … of this many that it holds
    steps: int = 0  # number of synchronized steps
    loss: float | None = None  # of the last step, on this rank
    loss_alone: float | None = None  # of the unsharded copy for the same batch
    not_compared: str | None = None  # why the steps were not compared with one rank's
    drifted: Names = Names()  # parameters that the optimizer or step changes differently than on the first rank
    off_step: int | None = None  # first step with a wrong parameter on some rank
    off: tuple[Off, ...] = ()
    off_count: int = 0
    saved: bool = False  # and loaded, by torch.distributed.checkpoint
    not_saved: str | None = None  # why this was not tested
    save_trouble: str | None = None  # the error that it raised
    not_loaded: Names = Names()  # trainable parameters that are not bitwise equal to the saved ones
