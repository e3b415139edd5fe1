"""What came of the user's own model on one rank, as the probe writes it and the rules read it."""

from typing import ClassVar, Literal

from ddp_doctor.facts.ddp.names import Names
from ddp_doctor.facts.ddp.sharded_model import Mesh, ShardedModel
from ddp_doctor.knowledge.ddp.manifests import Manifested
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

#: What the user's code was asked to do when it failed.
Phase = Literal["import", "factory", "move", "make_batch", "forward", "loss", "backward", "wrap", "optimizer"]


class Trouble(Frozen):
    """How the user's code failed on a rank.

    ``where`` is the innermost line of it ("/home/me/net.py:31"); ``misuse``: nothing was raised, but what
    --model names is not what it has to be, and ``message`` says so in a sentence.
    """

    phase: Phase
    type: str = ""
    message: str = ""
    where: str = ""
    misuse: bool = False
    out_of_memory: bool = False  # of the device, of which the doctor takes a part only


class Misplaced(Frozen):
    """A tensor that is on another device than the rank's. An attribute is no part of the state, so .to() leaves it."""

    kind: Literal["parameter", "buffer", "input", "attribute"]
    name: str
    device: str


class Call(Frozen):
    """A submodule that was called, and the user's line that called it."""

    module: str
    where: str = ""


class Parting(Frozen):
    """The first call of a submodule that is not the one of ``peer``; None: there was none any more."""

    index: int
    peer: int  # original rank
    here: Call | None = None
    there: Call | None = None


class LocalPass(Frozen):
    """A forward and backward of this rank alone, with the batch of one step."""

    step: int
    loss: float | None  # None where it is no finite number
    not_finite: Names = Names()  # parameters whose gradient is not
    unused: Names = Names()  # trainable parameters that got no gradient here, and do on another rank
    unused_everywhere: Names = Names()
    frozen: Names = Names()  # trainable parameters from which the forward took requires_grad
    unknown: Names = Names()  # got a gradient, and were not trainable or not there before: DDP does not know them
    parting: Parting | None = None


class Hook(Frozen):
    """A hook on a parameter's gradient, and the line where what it calls is defined ("/home/me/net.py:31")."""

    parameter: str
    where: str = ""


class BatchNorms(Frozen):
    """The BatchNorm layers that ran in training mode without synchronizing; those of the smallest batch."""

    count: int
    first: str
    samples: int  # the least number that one of them saw


class OffGradient(Frozen):
    """A gradient after a synchronized step that is not the mean of the ranks' own."""

    parameter: str
    step: int
    got: float | None
    expected: float | None
    own: float | None  # this rank's own gradient of the same element


class Bucket(Frozen):
    """One of DDP's buckets, in the order in which they are reduced."""

    bytes: int
    parameters: int
    first: str = ""
    last: str = ""


class Buckets(Frozen):
    """How DDP packs the gradients: after its first step, where it has packed them anew."""

    cap_bytes: int
    rebuilt: bool
    count: int
    largest_bytes: int
    buckets: tuple[Bucket, ...] = ()


class UserModel(Fact):
    """What came of the user's own model on one rank.

    ``stopped`` is the phase after which all ranks stopped, because of what is in ``trouble`` on some of
    them or of what cannot be wrapped; None where all was looked at.
    """

    KIND: ClassVar[str] = "user_model/1"

    model: str
    device: str
    world_size: int
    stopped: str | None = None
    trouble: Trouble | None = None
    found_device: str | None = None  # the current CUDA device after the factory, where it is another one
    manifest: Manifested | None = None
    parameters: int = 0
    trainable: int = 0
    elements: int = 0
    gradient_bytes: int = 0
    moved: bool = False  # from the CPU to the device, as a script does before it wraps
    misplaced: tuple[Misplaced, ...] = ()
    has_batch: bool = False
    options: tuple[str, ...] = ()  # DDP's, given by the factory: "find_unused_parameters=True"
    finds_unused: bool = False  # of the options
    local: tuple[LocalPass, ...] = ()
    batch_norms: BatchNorms | None = None
    repeats: bool | None = None  # the same batch and seed give the same gradient again
    repeat_error: float | None = None  # the greatest difference, relative to the parameter's largest gradient
    same_batch_loss: float | None = None  # with rank 0's batch and seed and equal parameters
    same_batch_loss_of_first: float | None = None
    no_same_batch: str | None = None  # why this was not compared
    same_batch_peer: int | None = None  # the rank whose gradients of that batch the own ones were compared with
    apart: Names = Names()  # parameters whose gradient is another one than the peer's
    hooks: tuple[Hook, ...] = ()  # of parameters whose gradient is another one on some rank
    off: tuple[OffGradient, ...] = ()
    off_count: int = 0
    compared_elements: int = 0
    drifted: Names = Names()  # parameters that are not those of the first rank after the steps
    buckets: Buckets | None = None
    no_buckets: str | None = None
    mesh: Mesh | None = None  # that the factory returned
    step_parting: Parting | None = None  # of calls of units, in the factory's step as each rank makes it by itself
    sharded: ShardedModel | None = None  # where the model, on any rank, is in fully_shard: it is not wrapped in DDP
    forward_s: float = 0.0  # of the last synchronized step
    backward_s: float = 0.0
