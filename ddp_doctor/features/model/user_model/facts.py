"""Results for the user's model on one rank. Written by the probe, read by the rules."""

from typing import ClassVar, Literal

from ddp_doctor.features.model.user_model.names import Names
from ddp_doctor.features.model.user_model.sharded_facts import Mesh, ShardedModel
from ddp_doctor.knowledge.ddp.manifests import Manifested
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

#: The step of the user's code that failed.
Phase = Literal["import", "factory", "move", "make_batch", "forward", "loss", "backward", "wrap", "optimizer"]


class Trouble(Frozen):
    """A failure of the user's code on a rank.

    ``where`` is its innermost line ("/home/me/net.py:31"). ``misuse``: no error was raised, but the object that --model
    names is unusable, and ``message`` explains it in a sentence.
    """

    phase: Phase
    type: str = ""
    message: str = ""
    where: str = ""
    misuse: bool = False
    out_of_memory: bool = False  # of the device; ddp-doctor takes only a part of its memory


class Misplaced(Frozen):
    """A tensor on another device than the rank's. An attribute is not part of the state, so .to() does not move it."""

    kind: Literal["parameter", "buffer", "input", "attribute"]
    name: str
    device: str


class Call(Frozen):
    """A submodule that was called, and the user's line that called it."""

    module: str
    where: str = ""


class Parting(Frozen):
    """The first call of a submodule that differs from the call of ``peer``. None: no further call."""

    index: int
    peer: int  # original rank
    here: Call | None = None
    there: Call | None = None


class LocalPass(Frozen):
    """A forward and backward of one rank without the others, with the batch of one step."""

    step: int
    loss: float | None  # None if not finite
    not_finite: Names = Names()  # parameters whose gradient is not finite
    unused: Names = Names()  # trainable parameters without a gradient here that have one on another rank
    unused_everywhere: Names = Names()
    frozen: Names = Names()  # trainable parameters whose requires_grad the forward turned off
    unknown: Names = Names()  # got a gradient, but were not trainable or did not exist before: DDP does not know them
    parting: Parting | None = None


class Hook(Frozen):
    """A hook on a parameter's gradient, and the line that defines what it calls ("/home/me/net.py:31")."""

    parameter: str
    where: str = ""


class BatchNorms(Frozen):
    """The BatchNorm layers that ran in training mode without synchronization, and the smallest batch of one."""

    count: int
    first: str
    samples: int  # smallest number of samples that one of them saw


class OffGradient(Frozen):
    """A gradient after a synchronized step that is not the mean of the ranks' local gradients."""

    parameter: str
    step: int
    got: float | None
    expected: float | None
    own: float | None  # this rank's local gradient of the same element


class Bucket(Frozen):
    """A DDP bucket, in order of reduction."""

    bytes: int
    parameters: int
    first: str = ""
    last: str = ""


class Buckets(Frozen):
    """The gradient buckets of DDP after its first step, when it may have rebuilt them."""

    cap_bytes: int
    rebuilt: bool
    count: int
    largest_bytes: int
    buckets: tuple[Bucket, ...] = ()


class UserModel(Fact):
    """The results for the user's model on one rank.

    ``stopped``: all ranks stopped after this phase, because of ``trouble`` on some of them or because the model cannot
    be wrapped. None: everything was tested.
    """

    KIND: ClassVar[str] = "user_model/1"

    model: str
    device: str
    world_size: int
    stopped: str | None = None
    trouble: Trouble | None = None
    found_device: str | None = None  # the current CUDA device after the factory, if it changed
    manifest: Manifested | None = None
    parameters: int = 0
    trainable: int = 0
    elements: int = 0
    gradient_bytes: int = 0
    moved: bool = False  # from CPU to device, as a script does before wrapping
    misplaced: tuple[Misplaced, ...] = ()
    has_batch: bool = False
    options: tuple[str, ...] = ()  # DDP's, given by the factory: "find_unused_parameters=True"
    finds_unused: bool = False  # find_unused_parameters, from these options
    local: tuple[LocalPass, ...] = ()
    batch_norms: BatchNorms | None = None
    repeats: bool | None = None  # the same batch and seed give the same gradient again
    repeat_error: float | None = None  # largest difference, relative to the parameter's largest gradient
    same_batch_loss: float | None = None  # with rank 0's batch and seed and equal parameters
    same_batch_loss_of_first: float | None = None
    no_same_batch: str | None = None  # why this was not compared
    same_batch_peer: int | None = None  # rank whose gradients of that batch were compared with this rank's
    apart: Names = Names()  # parameters whose gradient differs from the peer's
    hooks: tuple[Hook, ...] = ()  # on parameters whose gradient differs on some rank
    off: tuple[OffGradient, ...] = ()
    off_count: int = 0
    compared_elements: int = 0
    drifted: Names = Names()  # parameters that differ from the first rank's after the steps
    buckets: Buckets | None = None
    no_buckets: str | None = None
    mesh: Mesh | None = None  # returned by the factory
    step_parting: Parting | None = None  # first differing call of a unit, each rank making the step separately
    sharded: ShardedModel | None = None  # if the model uses fully_shard on any rank; it is not wrapped in DDP then
    forward_s: float = 0.0  # of the last synchronized step
    backward_s: float = 0.0
