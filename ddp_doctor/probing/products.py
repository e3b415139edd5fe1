"""Matrices whose products are the same on every device: multiplied to compare bits, and to be timed."""

from typing import TYPE_CHECKING

from ddp_doctor.probing.rank_identity import training_dtype

if TYPE_CHECKING:
    import torch

#: Pairs of matrices.
PAIRS = 32
#: Rows: 4 us a product on one core at 145 GFLOP/s, and tiles for all multiprocessors of a GPU.
_ROWS, _ROWS_ON_GPU = 64, 512
#: Bits of each number, beside its sign: bf16 holds them, so TF32 does, and the sum of 512 products needs 23, so that
#: fp32 adds them without rounding. Only the result is rounded, to the nearest in its type.
_BITS = 7
#: All of them, what they are made of, and cuBLAS's workspace.
MEMORY_BYTES = 256 * 2**20


def rows(device: str) -> int:
    """Rows and columns that suit a device."""
    return _ROWS_ON_GPU if device.startswith("cuda") else _ROWS


def matrices(device: str, rows: int) -> "torch.Tensor":
    """Two of each pair, the same everywhere: made on the CPU, since a GPU's random numbers depend on its size."""
    import torch

    shape, generator = (2, PAIRS, rows, rows), torch.Generator().manual_seed(1)
    integers = torch.randint(-(2**_BITS), 2**_BITS, shape, generator=generator, dtype=torch.int32)
    return (integers / 2.0**_BITS).to(training_dtype(device)).to(device)
