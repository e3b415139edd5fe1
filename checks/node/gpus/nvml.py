"""The answer of sources/child_nvml.py, as typed values.

One JSON object; see that module for a whole sample:

    {"error": null, "call": "", "gpu": null, "text": "", "elapsed_s": 0.06, "driver_version": "550.90.07",
     "gpus": [{"index": 0, "uuid": "GPU-8932f937-…", "bus_id": "00000000:1B:00.0", …}]}
    {"error": "driver_not_loaded", "call": "nvmlInit", "text": "Driver Not Loaded", "gpus": [], …}
"""

from ddp_doctor.facts.node.gpus import BusId, Gpu, NvmlError
from ddp_doctor.model.base import Frozen


class NvmlAnswer(Frozen):
    """All that the child found out."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    cuda_driver_version: str | None = None  # the newest CUDA that this driver can serve
    nvml_version: str | None = None
    confidential_compute: bool | None = None
    excluded_bus_ids: tuple[BusId, ...] = ()  # GPUs that the operator took out (NVreg_ExcludedGpus)
    elapsed_s: float = 0.0
    error: str | None = None
    call: str = ""
    gpu: int | None = None
    text: str = ""

    def failure(self) -> NvmlError | None:
        """The error, or None where NVML answered."""
        if self.error is None:
            return None
        return NvmlError(code=self.error, call=self.call, gpu=self.gpu, text=self.text)


def parse_nvml(text: str) -> NvmlAnswer:
    """The child's answer. Raises ValueError where ``text`` is not one."""
    return NvmlAnswer.model_validate_json(text)
