"""A model for ``--model`` whose second rank fails in its first backward, or has its data elsewhere."""

import os
import signal
from typing import Any

import torch  # noqa: TID253
import torch.distributed as dist  # noqa: TID253


def _befalls(fault: str) -> None:
    if dist.get_rank() != 1:
        return
    if fault == "hangs":
        signal.pause()
    os.kill(os.getpid(), {"is killed": signal.SIGKILL, "is stopped": signal.SIGSTOP}[fault])


class Small(torch.nn.Module):
    """Two layers, and between them what befalls the second rank."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        middle = self.first(data)
        if self.fault and middle.requires_grad:
            middle.register_hook(lambda _gradient: _befalls(self.fault))
        result: torch.Tensor = self.second(middle)
        return result


def _made(fault: str = "", device: str | None = None) -> tuple[Any, Any]:
    def make_batch(step: int) -> torch.Tensor:
        return torch.rand(4, 8, device=device, generator=torch.Generator(device or "cpu").manual_seed(step))

    return Small(fault), make_batch


def healthy() -> Any:
    return _made()


def hangs() -> Any:
    return _made("hangs")


def killed() -> Any:
    """Be killed, as by the kernel without memory."""
    return _made("is killed")


def stopped() -> Any:
    """Be stopped, as by a debugger."""
    return _made("is stopped")


def on_the_first_gpu() -> Any:
    return _made(device="cuda:0")
