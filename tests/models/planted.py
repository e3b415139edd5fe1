"""Models with one defect each; the rank that is off is the first, number 1."""

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.models.healthy import ConvNet, UnlikeAtFirst, experts, images

BAD = 1


def is_bad() -> bool:
    return dist.get_rank() == BAD


class RankBranch(ConvNet):
    def takes_extra(self, images: Any) -> bool:
        return not is_bad()


def rank_branch():
    return RankBranch(), images


def rank_branch_allowed():
    return RankBranch(), images, {"find_unused_parameters": True}


class UnusedHead(ConvNet):
    def takes_extra(self, images: Any) -> bool:
        return False


def unused_head():
    return UnusedHead(), images


def unused_head_allowed():
    return UnusedHead(), images, {"find_unused_parameters": True}


def searches_in_vain():
    return ConvNet(), images, {"find_unused_parameters": True}


def additional_layer():
    model = ConvNet()
    if is_bad():
        model.more = nn.Linear(8, 8)
    return model, images


def on_meta():
    model = ConvNet()
    model.extra = nn.Linear(8, 8, device="meta")
    return model, images


def input_on_meta():
    return ConvNet(), lambda step: torch.randn(4, 3, 6, 6, device="meta")


def two_samples():
    return ConvNet(), lambda step: images(step, 2)


def two_samples_without_batch_norm():
    return ConvNet(nn.InstanceNorm2d), lambda step: images(step, 2)


class NotANumber(ConvNet):
    def forward(self, images: Any) -> Any:
        given = super().forward(images)
        return given * float("nan") if is_bad() else given


def not_a_number():
    return NotANumber(), images


class Ignored(ConvNet):
    _ddp_params_and_buffers_to_ignore = ("head.weight",)


def ignored():
    return Ignored(), images


class Restless(ConvNet):
    """Draws from its own generator, which is never seeded again."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator()

    def forward(self, images: Any) -> Any:
        return super().forward(images) * (1 + torch.rand((), generator=self.own))


def restless():
    return Restless(), images


class ScaledByRank(ConvNet):
    def forward(self, images: Any) -> Any:
        return super().forward(images) * (2.0 if is_bad() else 1.0)


def scaled_by_rank():
    return ScaledByRank(), images


class NormalisedByRank(UnlikeAtFirst):
    """Scales its weights in place by what the rank's own batch is."""

    def forward(self, given: Any) -> Any:
        with torch.no_grad():
            self.layer.weight.mul_(1.0 + 1e-6 * is_bad())
        return super().forward(given)


def normalised_by_rank():
    return NormalisedByRank(), lambda step: torch.randn(3, 4)


class Twice(UnlikeAtFirst):
    """A layer in two reentrant checkpoints, so that DDP reduces its gradient before the second part exists."""

    def forward(self, given: Any) -> Any:
        given = given.requires_grad_()
        first = checkpoint(super().forward, given, use_reentrant=True)
        return checkpoint(super().forward, first, use_reentrant=True)


def twice():
    return Twice(), lambda step: torch.randn(3, 4)


class DislikesDdp(ConvNet):
    """Works alone and fails in DDP, like a second forward before a backward or a hook of another library."""

    def forward(self, images: Any) -> Any:
        wrapper: Any = nn.parallel.DistributedDataParallel
        if wrapper._get_active_ddp_module() is not None:
            raise RuntimeError("Expected to mark a variable ready only once")
        return super().forward(images)


def dislikes_ddp():
    return DislikesDdp(), images


class Raises(ConvNet):
    def forward(self, images: Any) -> Any:
        if is_bad():
            raise ValueError("token=abc: no such image")  # not to be repeated
        return super().forward(images)


def raises():
    return Raises(), images


def one_value_a_channel():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), lambda step: torch.randn(1, 4)


def no_parameters():
    return nn.ReLU(), lambda step: torch.randn(3)


def all_frozen():
    return ConvNet().requires_grad_(False), images


class Detached(ConvNet):
    def forward(self, images: Any) -> Any:
        return super().forward(images).detach()


def detached():
    return Detached(), images


class CollectiveOnOneRank(ConvNet):
    def forward(self, images: Any) -> Any:
        if not is_bad():
            return super().forward(images)
        seen = torch.ones(1)
        dist.all_reduce(seen)  # the line that the report must name
        return super().forward(images) * seen


def collective_on_one_rank():
    return CollectiveOnOneRank(), images


def endless() -> Any:
    threading.Event().wait()  # this one as well


def endless_on_one_rank():
    return endless() if is_bad() else (ConvNet(), images)


def wrong_on_one_rank():
    return None if is_bad() else (ConvNet(), images)


def needs_an_argument(width):
    return nn.Linear(width, width)


def gives_a_number():
    return 42


def starts_the_group_itself():
    dist.init_process_group("gloo")
    return ConvNet()


def wrapped() -> Any:
    return nn.parallel.DistributedDataParallel(ConvNet())


def batch_is_text():
    return ConvNet(), lambda step: "no tensor"


A_MODEL = ConvNet()
NO_CALLABLE = 7


def not_to_be_copied():
    model = ConvNet()
    if is_bad():
        vars(model)["lock"] = threading.Lock()
    return model, images


def lazy():
    return nn.Sequential(nn.LazyLinear(4)), lambda step: torch.randn(16, 3)


def experts_not_allowed_for():
    model, make_batch, _ = experts()
    return model, make_batch


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raises_without_words():
    raise Wordless


class HookedOnOneRank(ConvNet):
    """A hook on one rank doubles a gradient on it; the loss is the same on all ranks."""

    def __init__(self, rank: int, kind: str = "register_hook") -> None:
        super().__init__()
        if dist.get_rank() == rank:
            getattr(self.head.weight, kind)(doubled)


def doubled(given: Any) -> Any:  # the hook that the report must name
    if isinstance(given, nn.Parameter):  # as a post-accumulate hook gets it
        assert given.grad is not None
        given.grad.mul_(2.0)
        return None
    return 2.0 * given


def hooked_on_one_rank():
    return HookedOnOneRank(BAD), images


def hooked_afterwards_on_one_rank():
    return HookedOnOneRank(BAD, "register_post_accumulate_grad_hook"), images


def hooked_on_the_first_rank():
    return HookedOnOneRank(0), images


class FrozenInTheForward(ConvNet):
    def forward(self, images: Any) -> Any:
        if is_bad():
            self.extra.requires_grad_(False)
        return super().forward(images)


def frozen_in_the_forward():
    return FrozenInTheForward(), images


class Thawed(ConvNet):
    """A frozen layer is made trainable in the forward, when DDP has looked."""

    def __init__(self) -> None:
        super().__init__()
        self.extra.requires_grad_(False)

    def forward(self, images: Any) -> Any:
        if self.thaws():
            self.extra.requires_grad_(True)
        return super().forward(images)

    def thaws(self) -> bool:
        return True


def thawed():
    return Thawed(), images


class ThawedOnOneRank(Thawed):
    def thaws(self) -> bool:
        return is_bad()


def thawed_on_one_rank():
    return ThawedOnOneRank(), images


class MadeLate(ConvNet):
    def forward(self, images: Any) -> Any:
        if not hasattr(self, "late"):
            self.late = nn.Linear(10, 2)
        return self.late(super().forward(images))


def made_late():
    return MadeLate(), images


class ResetByHooks(ConvNet):
    """An optimizer in the backward: each gradient is used and dropped immediately, before it is averaged."""

    def __init__(self) -> None:
        super().__init__()
        every: list[Any] = list(self.parameters())
        for parameter in every:
            parameter.register_post_accumulate_grad_hook(self.descend)

    @torch.no_grad()
    def descend(self, parameter: Any) -> None:
        parameter.sub_(1e-2 * parameter.grad)
        parameter.grad = None


def reset_by_hooks():
    return ResetByHooks(), images


class ScaledOnTheFirst(ConvNet):
    def forward(self, images: Any) -> Any:
        return super().forward(images) * (2.0 if dist.get_rank() == 0 else 1.0)


def scaled_on_the_first():
    return ScaledOnTheFirst(), images


class DrawsFromItsOwn(ConvNet):
    """Its outputs are zero at first, because of state that no seed affects."""

    def forward(self, images: Any) -> Any:
        return super().forward(images) * float(next(self.draws) >= 4)

    def __init__(self) -> None:
        super().__init__()
        self.draws = iter(range(1000))


def draws_from_its_own():
    return DrawsFromItsOwn(), images


def wrapped_and_compiled():
    compile_: Any = torch.compile
    return compile_(wrapped(), backend="eager")


def a_batch_itself():
    return ConvNet(), images(0)


def batch_without_step():
    return ConvNet(), lambda: images(0)


def four_things():
    return ConvNet(), images, None, None


def misspelt():
    return {"model": ConvNet(), "make_batches": images}


def no_model():
    return {"make_batch": images}


def loss_of_torch():
    return {"model": ConvNet(), "make_batch": images, "loss": nn.CrossEntropyLoss()}


def with_target(target: Any, model: Any = ConvNet) -> Any:
    return model(), lambda step: (images(step, 4), target)


def inputs_and_target():
    return with_target(torch.tensor([3, 1, 4, 1]))


def target_is_a_number():
    return with_target(3)


def target_is_words():
    return with_target(["cat", "dog", "cat", "cow"])


def target_is_none():
    return with_target(None)


class Masked(ConvNet):
    def forward(self, given: Any, mask: Any = None) -> Any:
        output = super().forward(given)
        return output if mask is None else output * mask.float()[:, None]


def target_as_mask():
    return with_target(torch.tensor([3, 1, 4, 1]), Masked)


class Switched(ConvNet):
    def forward(self, given: Any, scaled: bool = False) -> Any:
        return super().forward(given)


def target_as_switch():
    return with_target(torch.tensor([3, 1, 4, 1]), Switched)


class WithState(ConvNet):
    def forward(self, given: Any, state: Any = None) -> Any:
        if state is not None:
            _hidden, _cell = state
        return super().forward(given)


def target_as_state():
    return with_target(torch.rand(4, 10), WithState)


def labels_in_a_dict():
    return ConvNet(), lambda step: {"images": images(step), "labels": torch.zeros(16)}


def with_loss(loss: Any) -> Any:
    return {"model": ConvNet(), "make_batch": lambda step: images(step, 4), "loss": loss}


def loss_is_a_number():
    return with_loss(lambda output, batch: output.mean().item())


def loss_of_each():
    return with_loss(lambda output, batch: output.mean(1))


def loss_detached():
    return with_loss(lambda output, batch: output.mean().detach())


def loss_fails():
    return with_loss(lambda output, batch: batch[9].mean())
