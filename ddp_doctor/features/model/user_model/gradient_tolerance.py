"""The allowed difference between a gradient of a user's model and the mean of the ranks' gradients.

ddp-doctor computes the mean in float64 from gradients that each rank computed again. Two things may differ: the
rounding of the sum over the ranks, half a unit in the last place for each of them, and the order of additions in
kernels, which is measured and added to the limit. The figures hold for some hundred ranks: n ranks round by at most n/2
units in the last place (IEEE 754: 2**-23 of float32, 2**-10 of float16, 2**-7 of bfloat16).
"""

_RELATIVE = {
    "float64": 1e-10,
    "complex128": 1e-10,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 2e-2,
    "bfloat16": 1e-1,
}
#: For unknown types: only a plainly different value counts.
_OF_OTHERS = 0.5
#: A smaller gradient counts as zero.
SMALLEST = 1e-30
#: Repeated work that differs by more than this, relative to the parameter's largest gradient, is not the same work: it
#: draws from a generator without a seed, or keeps state. Atomic additions in float16 stay below.
REPEATED = 5e-2
#: Two ranks with the same work may have different hardware and libraries; a larger difference is another gradient.
ON_ANOTHER_RANK = 1e-1
#: Share of the model's largest gradient. A smaller gradient may be only rounding, as for a bias before a BatchNorm.
ROUNDING_ALONE = 1e-2


def relative(dtype: str) -> float:
    """Return the tolerance relative to the largest mean absolute gradient in a parameter of this type."""
    return _RELATIVE.get(dtype, _OF_OTHERS)


#: Allowed distance between the steps of a sharded model and of one rank, as a multiple of the change from rounding the
#: parameters once more on one rank. Optimizers such as Adam make a full step from a gradient that is only rounding. In
#: 17 healthy models on four gloo ranks, float32 and bfloat16, no parameter was off by more than a tenth of the total
#: allowance (tests/models/sharded.py, torch 2.13).
SPREADS = 4.0
