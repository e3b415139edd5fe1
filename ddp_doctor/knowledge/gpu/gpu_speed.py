"""The memory that a check may use on a GPU, and reference values for a GPU under load."""

import re
from collections.abc import Sequence

MIB = 1024**2

#: Share of the free memory; other programs on the GPU must find memory when they ask for more.
SHARE_OF_FREE = 0.10
MOST_BYTES = 1024 * MIB
#: Memory that a rank's checks need: the exchange of 64 MiB between a pair holds four such tensors.
LEAST_BYTES = 384 * MIB
#: … if the user gives the sizes of messages (--sizes); the rest is for CUDA and NCCL.
SHARE_FOR_SIZES = 0.9


def allowance(free_bytes: int) -> int:
    """Return the bytes of tensors that a rank may hold on a GPU with this much free memory, at most half of it.

    Memory of CUDA and NCCL is not counted: some 0.5 GiB per process, which no setting changes.
    """
    wanted = min(max(int(SHARE_OF_FREE * free_bytes), LEAST_BYTES), MOST_BYTES)
    return min(wanted, free_bytes // 2)


#: A GPU this far below the median of its peers is slow. gpu-fryer tolerates 10% under the best GPU
#: (huggingface/gpu-fryer, --tflops-tolerance); seven healthy A100s of one node differed by 1% (NVIDIA/DCGM issue 122),
#: and power-capped H100s by some 3% (that tool's own sample).
SLOWER_SHARE = 0.10
#: With fewer GPUs of one model it is unclear which of them is at fault.
FEWEST_TO_JUDGE = 3

#: Copies to and from the host depend on more than the GPU: memory of the other socket costs up to a third.
HOST_COPY_SLOWER_SHARE = 0.5
#: Pinned copies reach 80-90% of their link (H200 on PCIe 5 x16: 55 of 63 GB/s; Azure's health checks ask for 23 of 31
#: GB/s on A100). IBM's autopilot fails at a quarter and expects four fifths.
HOST_COPY_LEAST_SHARE_OF_LINK = 1 / 3

#: A clocks event reason in this share of the samples under load reduced the clocks permanently. NVML also raises
#: hw_slowdown for a moment while clocks change (nvml.h, nvmlClocksThrottleReasonHwSlowdown).
IN_FORCE_SHARE = 0.5
#: … and fewer samples than this are inconclusive.
FEWEST_LOOKS = 4

#: Reasons that reduce the clocks of a busy GPU below the set clocks (nvml.h). sw_power_cap is omitted, because a large
#: GPU multiplies matrices at its power limit without a fault, and so are clocks set by a user.
SLOWDOWNS_UNDER_LOAD = {
    "hw_thermal_slowdown": "too hot, so the hardware reduces the clocks to half or less",
    "hw_power_brake_slowdown": "the power supply makes the hardware reduce the clocks to half or less",
    "hw_slowdown": "the hardware reduces the clocks to half or less",
    "sw_thermal_slowdown": "hot, so the driver reduces the clocks",
}
#: These halve the clocks. The other reason is normal for a laptop on a warm day.
HARDWARE_SLOWDOWNS = ("hw_thermal_slowdown", "hw_power_brake_slowdown", "hw_slowdown")

#: A power limit this much below the peers' explains a slow GPU.
POWER_LIMIT_LOWER_SHARE = 0.05

#: Memory in use on a rank's GPU if NVML was not queried: CUDA and NCCL take up to 2 GiB.
OWN_USE_BYTES = 4 * 1024**3
OWN_USE_SHARE = 0.25

#: GB/s per lane and direction, by PCIe generation: 2.5, 5, 8, 16 and 32 GT/s with 8b/10b, since the third with
#: 128b/130b, and 64 GT/s with FLITs of 242 bytes in 256 (PCI-SIG).
_LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def link_gb_per_s(generation: int | None, width: int | None) -> float | None:
    """Return the rate of a PCIe link in one direction, or None if its generation or width is unknown."""
    lane = _LANE_GB_PER_S.get(generation or 0)
    return lane * width if lane and width else None


#: Published rates of matrix products in bf16, in TFLOP/s (huggingface/gpu-fryer, README; its issue and pull request
#: threads), by the start of NVML's name. They vary with clocks, power and matrix size.
PUBLISHED_BF16_TFLOP_PER_S: Sequence[tuple[str, float]] = (
    ("NVIDIA A100-SXM", 270.0),
    ("NVIDIA H100 80GB HBM3", 730.0),
    ("NVIDIA GH200", 705.0),
    ("NVIDIA GB200", 1550.0),
)
PUBLISHED_BY = "gpu-fryer's table of measured bf16 rates, https://github.com/huggingface/gpu-fryer"
#: Published rates vary by a few percent, and a smaller matrix is a few percent slower. A rate below this share of the
#: published one is reported.
PUBLISHED_LEAST_SHARE = 0.6


def published_bf16(name: str | None) -> float | None:
    """Return the published rate of this GPU model, or None."""
    return next((rate for start, rate in PUBLISHED_BF16_TFLOP_PER_S if (name or "").startswith(start)), None)


#: A UUID that is safe in a command, because a recording may come from anyone.
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def as_argument(uuid: str | None) -> str:
    """Return the UUID for ``nvidia-smi -i``, or a placeholder if it is not valid."""
    return uuid if uuid is not None and _UUID.fullmatch(uuid) else "INDEX"
