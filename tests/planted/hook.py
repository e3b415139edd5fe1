"""Plants GPUs in a Python process that imports torch: its CUDA runtime, NCCL's, collectives, and operators.

Each interpreter of an environment runs this at its start where PLANTED_TORCH names this file (torch.py writes the line
into a .pth): the doctor's server of processes, ranks, torchrun, and helpers that look at GPUs.
"""

import ctypes
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class AroundTorch:
    """Finds the real torch once, and sets up the simulated GPUs after torch has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            cuda = ctypes.CDLL("libcuda.so.1")
            ctypes.CDLL("libplanted-collectives.so", mode=ctypes.RTLD_GLOBAL)  # found before libnccl's names
            execute(module)
            _plant(module, cuda)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _plant(torch: ModuleType, cuda: ctypes.CDLL) -> None:
    home = Path(str(torch.__file__)).parent
    major, minor = map(int, str(torch.version.cuda).split("."))
    cuda.planted_runtime(major * 1000 + minor * 10)
    for library in (f"libcudart.so.{major}", "libnccl.so.2"):
        if cuda.planted_attach(library.encode()) <= 0:
            raise ImportError(f"{library} was not redirected")
    # Filed as torch's own, so that the stack of a job has the same frames as on a GPU.
    operators = Path(__file__).with_name("operators.py")
    exec(compile(operators.read_text(), str(home / "_ops.py"), "exec"), {"__name__": "planted_operators"})


sys.meta_path.insert(0, AroundTorch())
