"""Matrices with the same products on every device, multiplied to compare bits and to measure speed."""

from typing import TYPE_CHECKING

from ddp_doctor.probing.rank_identity import training_dtype

if TYPE_CHECKING:
    import torch

#: Pairs of matrices.
PAIRS = 32
#: Rows: 4 us per product on one core at 145 GFLOP/s, and tiles for all multiprocessors of a GPU.
_ROWS, _ROWS_ON_GPU = 64, 512
#: Bits of each number without its sign: bf16 and TF32 hold them. The sum of 512 products needs 23 bits, so fp32 adds
#: them without rounding. Only the result is rounded, to the nearest value of its type.
_BITS = 7
#: Bytes for all matrices, the numbers that they are made from, and cuBLAS's workspace.
MEMORY_BYTES = 256 * 2**20


def rows(device: str) -> int:
    """Return the number of rows and columns for a device."""
    return _ROWS_ON_GPU if device.startswith("cuda") else _ROWS


def matrices(device: str, rows: int) -> "torch.Tensor":
    """Return both matrices of each pair, made on the CPU because a GPU's random numbers depend on its size."""
    import torch

    shape, generator = (2, PAIRS, rows, rows), torch.Generator().manual_seed(1)
    integers = torch.randint(-(2**_BITS), 2**_BITS, shape, generator=generator, dtype=torch.int32)
    return (integers / 2.0**_BITS).to(training_dtype(device)).to(device)
