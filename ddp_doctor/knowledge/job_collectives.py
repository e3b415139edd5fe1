"""Names of operations and types in recorders of collectives, and how much of a job's collectives is replayed.

Names of operations: torch's flight recorder (torch 2.15 ProcessGroupGloo.cpp, ProcessGroupNCCL.cpp: profilingTitle) and
profilers' traces (parse/trace), each without the backend before the colon.
"""

#: The call of torch.distributed for each name. Calls with other names are omitted.
OPERATIONS = {
    name: op
    for op, names in {
        "all_reduce": "all_reduce allreduce_coalesced all_reduce_barrier",
        "broadcast": "broadcast _broadcast_oop",
        "reduce": "reduce _reduce_oop",
        "all_gather": "all_gather _all_gather_base _allgather_base all_gather_into_tensor"
        " all_gather_into_tensor_coalesced allgather_into_tensor_coalesced",
        "reduce_scatter": "reduce_scatter _reduce_scatter_base reduce_scatter_tensor reduce_scatter_tensor_coalesced",
        "all_to_all": "all_to_all all_to_all_single alltoall alltoall_base",
        "gather": "gather",
        "scatter": "scatter",
        "barrier": "barrier",
    }.items()
    for name in names.split()
}
#: In these operations, each rank of a group gives the same number of elements of one type.
ALIKE = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
#: torch's name of a type and its bytes, by the recorder's name in lower case (c10/core/ScalarType.h). Other types are
#: moved as bytes.
TYPES = {
    "float": ("float32", 4),
    "double": ("float64", 8),
    "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "int": ("int32", 4),
    "long": ("int64", 8),
    "short": ("int16", 2),
    "char": ("int8", 1),
    "byte": ("uint8", 1),
    "bool": ("bool", 1),
}
BYTES = dict(TYPES.values())
#: Maximum number of calls to replay, over all ranks; a recorder keeps 2,000 of each by default (TORCH_FR_BUFFER_SIZE).
MOST_CALLS = 200_000
#: Maximum number of groups to make for them: 200 of two gloo ranks take 3 s on a busy machine, 2,000 longer than the
#: check may take.
MOST_GROUPS = 256
#: Maximum bytes that a rank gives in an entire replay: on a CPU, at the lowest rate that counts as progress, they take
#: as long as a wait (HUNG_S).
MOST_BYTES_ON_CPU, MOST_BYTES_ON_GPU = 512 << 20, 16 << 30
#: The largest tensor, with room for the data of all ranks.
LARGEST_BYTES_ON_CPU, LARGEST_BYTES_ON_GPU = 64 << 20, 1 << 30
#: A rank that waits this long in a replay hangs, because no rank computes. The time to move earlier data is added.
HUNG_S = 10.0
SLOWEST_BYTES_PER_S = 50e6
