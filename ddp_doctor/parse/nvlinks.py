"""The NVLinks of each GPU, one by one: what ``nvidia-smi nvlink -s`` prints and NVML tells.

GPU 0: NVIDIA H100 NVL (UUID: GPU-8932f937-…)
         Link 0: 26.562 GB/s
         Link 1: <inactive>
"""

from typing import Literal

from pydantic import Field

from ddp_doctor.model.base import Frozen


class Nvlink(Frozen):
    """One link of a GPU; None where it was not told."""

    index: int
    active: bool | None = None
    gb_per_s: float | None = None  # one way, as the driver gives it
    remote: Literal["gpu", "switch", "cpu"] | None = None
    remote_bus_id: str | None = None  # as /sys writes it: "0000:1b:00.0"
    errors: dict[str, int] = Field(default_factory=dict)  # "replay", "recovery", "crc": counted since reset
    errors_per_s: dict[str, float] = Field(
        default_factory=dict
    )  # how fast they grew; empty: not looked twice


class GpuNvlinks(Frozen):
    """All links of one GPU; ``gpu`` is its name in a matrix, "GPU0"."""

    gpu: str
    name: str | None = None
    links: tuple[Nvlink, ...] = ()

    def active(self) -> int:
        """How many links carry data."""
        return sum(link.active is True for link in self.links)

    def inactive(self) -> tuple[int, ...]:
        """The numbers of those that do not."""
        return tuple(link.index for link in self.links if link.active is False)

    def remotes(self) -> set[str | None]:
        """What the links that carry data lead to."""
        return {link.remote for link in self.links if link.active}
