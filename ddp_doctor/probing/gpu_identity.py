"""Which GPU a rank's device is."""


def gpu_identity(device: str) -> tuple[str | None, str | None]:
    """UUID and name of a CUDA device; the UUID is None on torch older than 2.4."""
    if not device.startswith("cuda"):
        return None, None
    import torch

    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    return (f"GPU-{uuid}" if uuid is not None else None), properties.name
