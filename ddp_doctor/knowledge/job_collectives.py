"""What recorders of collectives call operations and types, and how much of a job's collectives is replayed.

Names of operations: torch's flight recorder (torch 2.15 ProcessGroupGloo.cpp, ProcessGroupNCCL.cpp: profilingTitle) and
profilers' traces (parse/trace), each without the backend before the colon.
"""

#: The call of torch.distributed that stands for each; what is not here is left out.
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
#: Of these each rank of a group gives as many numbers of one type.
ALIKE = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
#: torch's name of a type and its bytes, by the name in a recorder in small letters (c10/core/ScalarType.h); others
#: are moved as bytes.
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
#: Calls that are replayed, over all ranks; a recorder keeps 2,000 of each by default (TORCH_FR_BUFFER_SIZE).
MOST_CALLS = 200_000
#: Groups that are made for them: 200 of two gloo ranks take 3 s on a busy machine, 2,000 more than the check has.
MOST_GROUPS = 256
#: Bytes that a rank gives in a whole replay: at the slowest rate that counts as moving they take as long as a wait.
MOST_BYTES_ON_CPU, MOST_BYTES_ON_GPU = 512 << 20, 16 << 30
#: The largest tensor, with room for what arrives of all ranks.
LARGEST_BYTES_ON_CPU, LARGEST_BYTES_ON_GPU = 64 << 20, 1 << 30
#: A rank that waits so long in a replay, in which nobody computes, hangs; and a longer time for what is moved before.
HUNG_S = 10.0
SLOWEST_BYTES_PER_S = 50e6
