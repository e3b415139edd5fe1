"""How far a gradient of a user's model may be from the mean of the ranks' own and still be that mean.

The doctor computes the mean in float64 of gradients that each rank computed once more. What may differ is the
rounding of the sum over the ranks, half a unit in the last place for each of them, and the order in which
kernels add, which is measured and comes on top. The figures hold for some hundred ranks: n ranks round by at
most n/2 units in the last place (IEEE 754: 2**-23 of float32, 2**-10 of float16, 2**-7 of bfloat16).
"""

_RELATIVE = {
    "float64": 1e-10,
    "complex128": 1e-10,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 2e-2,
    "bfloat16": 1e-1,
}
#: Of types that are not known: only what is plainly another value counts.
_OF_OTHERS = 0.5
#: Below this a gradient is nothing.
SMALLEST = 1e-30
#: Work that is done twice and differs by more than this, relative to the parameter's largest gradient, is not the
#: same work: it draws from a generator without a seed, or keeps state. Atomic additions in float16 stay below.
REPEATED = 5e-2
#: Two ranks with the same work may have other hardware and libraries: beyond this it is another gradient.
ON_ANOTHER_RANK = 1e-1
#: Of the model's largest gradient: a smaller one may be rounding alone, as for a bias before a BatchNorm.
ROUNDING_ALONE = 1e-2


def relative(dtype: str) -> float:
    """Of the largest mean absolute gradient in a parameter of this type."""
    return _RELATIVE.get(dtype, _OF_OTHERS)


#: How far a step of a sharded model may be from that of one rank alone, in times of how far that one moves where its
#: parameters are rounded once more: optimizers such as Adam make a whole step of a gradient that is rounding alone.
#: Of 17 healthy models on four gloo ranks, float32 and bfloat16, no parameter was farther off than a tenth of what is
#: allowed in all (tests/models/sharded.py, torch 2.13).
SPREADS = 4.0
