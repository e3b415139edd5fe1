"""The accelerators of a node: typed values of the answer of sources/child_nvml.py, and GPUs of other vendors.

NVML's answer is one JSON object; that module has a complete sample:

    {"error": null, "call": "", "gpu": null, "text": "", "elapsed_s": 0.06, "driver_version": "550.90.07",
     "gpus": [{"index": 0, "uuid": "GPU-8932f937-…", "bus_id": "00000000:1B:00.0", …}]}
    {"error": "driver_not_loaded", "call": "nvmlInit", "text": "Driver Not Loaded", "gpus": [], …}

ddp-doctor does not support accelerators of other vendors yet, but must not overlook them. The kernel's compute driver
lists AMD GPUs like this, if /dev/kfd is open to us:

    /sys/class/kfd/kfd/topology/nodes/2/properties
        cpu_cores_count 0
        simd_count 1216
        gfx_target_version 90402        gfx942, MI300
        location_id 18176               0x4700: bus 47, device 00.0
        domain 0
    /sys/bus/pci/devices/0000:47:00.0/product_name    AMD Instinct MI300X OAM

It also looks for Intel Gaudi, with devices /dev/accel/accelN and the driver habanalabs. Integrated graphics and display
cards count only if the installed torch is built for ROCm.

Sources: linux drivers/gpu/drm/amd/amdkfd/kfd_topology.c; drivers/accel/habanalabs/common/habanalabs_drv.c
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddp_doctor.facts.node.gpus import BusId, Gpu, NvmlError
from ddp_doctor.model.base import Frozen, grouped
from ddp_doctor.model.context import Context
from ddp_doctor.parse.json_value import NotJson, json_object
from ddp_doctor.parse.software import last_line
from ddp_doctor.parse.visible_devices import DELIBERATE_ENDS
from ddp_doctor.probing.host_gpus import PCI
from ddp_doctor.probing.kernel_files import end_of, first_line, names_in, text_of


class NvmlAnswer(Frozen):
    """The child's complete answer."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    cuda_driver_version: str | None = None  # the newest CUDA that this driver supports
    nvml_version: str | None = None
    confidential_compute: bool | None = None
    excluded_bus_ids: tuple[BusId, ...] = ()  # GPUs that the operator excluded (NVreg_ExcludedGpus)
    elapsed_s: float = 0.0
    error: str | None = None
    call: str = ""
    gpu: int | None = None
    text: str = ""

    def failure(self) -> NvmlError | None:
        """Return the error, or None if NVML answered."""
        if self.error is None:
            return None
        return NvmlError(code=self.error, call=self.call, gpu=self.gpu, text=self.text)


def parse_nvml(text: str) -> NvmlAnswer:
    """Return the child's answer. Raises ValueError if ``text`` is not one."""
    return NvmlAnswer.model_validate_json(text)


KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
#: gfx_target_version of AMD's accelerators for data centers: MI50 and MI60, MI100, MI200, MI300, MI350
#: (ROCm documentation, Accelerator and GPU hardware specifications).
DATA_CENTRE = (90006, 90008, 90010, 90400, 90401, 90402, 90500)
#: With an empty one of these, ROCm shows a process no GPU (ROCm documentation, GPU isolation techniques).
HIDING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
GAUDI_DRIVER = "habanalabs"
LONGEST = 20  # digits of a number of 64 bits


@dataclass(frozen=True)
class Accelerator:
    """An accelerator that a job could compute on."""

    maker: str
    name: str
    for_data_centres: bool = True


def unsupported(ctx: Context) -> str | None:
    """Return the accelerators that a job would use and that are unsupported: "8 AMD GPUs (AMD Instinct MI300X OAM)"."""
    return _listed((*([] if hiding(ctx) else _amd_gpus_of_job(ctx)), *_gaudi(ctx)))


def hidden(ctx: Context) -> str | None:
    """Return the AMD GPUs here that a setting hides from the job."""
    return _listed(_amd_gpus_of_job(ctx)) if hiding(ctx) else None


def hiding(ctx: Context) -> str | None:
    """Return the setting that hides all AMD GPUs from the job: ``HIP_VISIBLE_DEVICES="-1"``."""
    values = {name: ctx.env[name] for name in HIDING if name in ctx.env}
    found = (name for name, value in values.items() if value.strip().lower() in DELIBERATE_ENDS)
    return next((f'{name}="{values[name]}"' for name in found), None)


def _amd_gpus_of_job(ctx: Context) -> list[Accelerator]:
    amd = list(_amd(ctx))
    meant = any(accelerator.for_data_centres for accelerator in amd) or (amd and _torch_is_for_rocm(ctx))
    return amd if meant else []


def _listed(accelerators: Iterable[Accelerator]) -> str | None:
    """Return "8 AMD GPUs (AMD Instinct MI300X OAM)", or None without any."""
    makers = grouped((accelerator.maker, accelerator.name) for accelerator in accelerators)
    words = [
        f"{len(names)} {maker}{'' if len(names) == 1 else 's'} ({', '.join(dict.fromkeys(names))})"
        for maker, names in makers.items()
    ]
    return " and ".join(words) or None


def _amd(ctx: Context) -> Iterator[Accelerator]:
    if "kfd" not in names_in(ctx, "/dev"):
        return
    for node in names_in(ctx, KFD_NODES):
        lines = (line.split() for line in (text_of(ctx, f"{KFD_NODES}/{node}/properties") or "").splitlines())
        numbers = [line for line in lines if len(line) == 2 and line[1].isdecimal() and len(line[1]) <= LONGEST]
        values = {name: int(number) for name, number in numbers}
        if values.get("simd_count"):
            name = first_line(ctx, f"{PCI}/{_bus_id(values)}/product_name") or _bus_id(values)
            target = values.get("gfx_target_version", 0)
            yield Accelerator("AMD GPU", name, target in DATA_CENTRE)


def _bus_id(values: dict[str, int]) -> str:
    place = values.get("location_id", 0)
    return f"{values.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _gaudi(ctx: Context) -> Iterator[Accelerator]:
    names = (*names_in(ctx, "/dev/accel"), *names_in(ctx, "/dev"))
    doors = [name for name in names if re.fullmatch(r"(accel|hl)[0-9]+", name)]
    for bus_id in names_in(ctx, PCI) if doors else ():
        if end_of(ctx, f"{PCI}/{bus_id}/driver") == GAUDI_DRIVER:
            yield Accelerator("Intel Gaudi accelerator", bus_id)


def _torch_is_for_rocm(ctx: Context) -> bool:
    """Return True if the torch of this Python was built for AMD GPUs; False if unknown."""
    try:
        return bool(json_object(last_line(ctx.child("software").stdout)).get("torch_hip"))
    except NotJson:
        return False
