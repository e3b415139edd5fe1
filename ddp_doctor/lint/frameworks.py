"""Libraries that wrap models, shard data and place tensors themselves: most rules skip scripts that use them."""

from __future__ import annotations

from collections.abc import Iterable

#: The beginning of the module's name, and the library's usual name.
_LIBRARIES = {
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "lightning_fabric": "Lightning",
    "deepspeed": "DeepSpeed",
    "horovod": "Horovod",
    "transformers.Trainer": "transformers.Trainer",
    "transformers.trainer": "transformers.Trainer",
    "transformers.Seq2SeqTrainer": "transformers.Trainer",
    "trl": "TRL",
    "composer": "Composer",
    "ignite.distributed": "Ignite",
    "colossalai": "Colossal-AI",
    "fairscale": "FairScale",
    "ray.train": "Ray Train",
    "smdistributed": "SageMaker",
    "bagua": "Bagua",
    "catalyst": "Catalyst",
    "mmengine": "MMEngine",
    "mmcv.runner": "MMCV",
    "detectron2.engine": "Detectron2",
    "torch_xla": "PyTorch/XLA",
    "oneflow": "OneFlow",
    "paddle": "Paddle",
    "mindspore": "MindSpore",
    "jax": "JAX",
    "byteps": "BytePS",
    "patrickstar": "PatrickStar",
    "megatron": "Megatron",
    "torchtnt": "TorchTNT",
}


def libraries(modules: Iterable[str]) -> frozenset[str]:
    """The libraries among imported modules and names."""
    begins = set[str]()
    for module in modules:
        while module and module not in begins:
            begins.add(module)
            module = module.rpartition(".")[0]  # noqa: PLW2901 - the module around it
    return frozenset(name for prefix, name in _LIBRARIES.items() if prefix in begins)
