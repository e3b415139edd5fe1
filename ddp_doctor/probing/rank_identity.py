"""A GPU and the settings of one rank or node, as it sends them to its peers."""

from collections.abc import Mapping

from ddp_doctor.facts.cluster import Settings
from ddp_doctor.parse.redact import open_and_withheld
from ddp_doctor.settings.agreement import is_compared
from ddp_doctor.settings.names import is_recorded


def gpu_identity(device: str) -> tuple[str | None, str | None]:
    """UUID and name of a CUDA device; the UUID is None on torch older than 2.4."""
    if not device.startswith("cuda"):
        return None, None
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    return (f"GPU-{uuid}" if uuid is not None else None), properties.name


def settings_of(env: Mapping[str, str]) -> Settings:
    """What one process has to tell its peers."""
    compared = {name: value for name, value in env.items() if is_recorded(name) and is_compared(name)}
    variables, withheld = open_and_withheld(compared)
    return Settings(variables=variables, withheld=withheld)
