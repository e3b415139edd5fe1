"""The activity of a rank, from the frames of its Python stack (paths and functions of torch 2.4 to 2.15)."""

import re
from typing import Literal, NamedTuple

Activity = Literal["data", "compile", "checkpoint", "start", "evaluation"]


class Frames(NamedTuple):
    """The frames of one activity. A rank has the activity if any of its frames, ``FILE:LINE in FUNCTION``, matches."""

    activity: Activity
    words: str  # text for reports: "compiles"
    pattern: re.Pattern[str]


SAVES = re.compile(
    r"/torch/serialization\.py|/torch/distributed/checkpoint/|/safetensors/"
    r"|in (?:[\w.<>]+\.)?_?(?:save|load|write|read)_\w*(?:checkpoint|ckpt|state|model)\w*$"
)
#: Frames that wait for data from the network.
IN_NETWORK = re.compile(r"/(?:socket|ssl|http/client|asyncio/\w+)\.py:\d+ in ")
#: The first match counts.
ACTIVITIES = (
    Frames("data", "loads data", re.compile(r"/torch/utils/data/dataloader\.py:\d+ in ")),
    Frames(
        "compile",
        "compiles",
        re.compile(
            r"/torch/_dynamo/convert_frame\.py"
            r"|/torch/_inductor/(?:compile_fx|codecache|async_compile|scheduler|graph)\.py"
            r"|/torch/_functorch/aot_autograd\.py:\d+ in (?:\w+\.)?create_aot"
            r"|/triton/compiler/|/torch/utils/cpp_extension\.py"
        ),
    ),
    Frames("checkpoint", "saves or loads a checkpoint", SAVES),
    Frames(
        "evaluation",
        "evaluates",
        re.compile(
            r"in (?:[\w.<>]+\.)?(?:\w+_)?(?:eval|evaluate|evaluation|valid|validate|validation|infer|inference)"
            r"(?:_\w+)?$"
        ),
    ),
    Frames("start", "imports modules", re.compile(r"^<frozen importlib\._bootstrap")),
)

#: Files in which torch waits for other ranks. If the innermost frame is in one of them, the rank is in a collective, or
#: in the rendezvous before the first one.
COLLECTIVE_FILES = re.compile(
    r"/torch/distributed/(?:distributed_c10d|_functional_collectives|rendezvous|utils|nn/functional"
    r"|algorithms/join|elastic/utils/store|_symmetric_memory/__init__|elastic/rendezvous/\w+)\.py:"
    r"|/torch/distributed/fsdp/|/torch/nn/parallel/distributed\.py:"
)
#: Frames of launchers and ranks that wait for the others before the job starts.
MEETING_FILES = re.compile(
    r"/torch/distributed/(?:elastic/rendezvous/\w+|rendezvous)\.py:"
    r"|/torch/distributed/distributed_c10d\.py:\d+ in (?:_store_based_barrier|init_process_group)$"
)
#: Frames that only pass a call on, between the user's line and the call.
WRAPPERS = re.compile(r"in (?:[\w.<>]+\.)?(?:wrapper|_fn|inner|decorate_context|__call__)$")
#: A backward pass: DDP's reduction of gradients ends within it.
BACKWARD = re.compile(r"/torch/autograd/(?:graph|__init__)\.py:\d+ in ")
#: The outermost frame of autograd's own thread for a GPU, in a backward written in Python.
OWN_BACKWARD = re.compile(r"/torch/autograd/function\.py:\d+ in ")
#: Source lines in which a rank waits, in C++, for work that it queued or for its GPU.
WAITS_FOR_WORK = re.compile(r"\.wait\(")
WAITS_FOR_GPU = re.compile(r"\.(?:item|cpu|tolist|numpy|synchronize|nonzero)\(|\.to\(|\bfloat\(")
IN_CUDA_WAIT = re.compile(r"/torch/cuda/(?:__init__|streams)\.py:\d+ in (?:\w+\.)?(?:synchronize|wait)")
#: Calls in which ranks meet at a store. Some kinds of stores are polled (FileStore).
MEETINGS = ("next_rendezvous", "init_process_group", "new_group", "new_subgroups", "monitored_barrier", "split_group")
#: Some ranks may leave these while others still wait in them: roots, ranks whose data the root has, and pairs.
ROOTED = (
    *("broadcast", "scatter", "gather", "reduce", "send", "recv", "isend", "irecv", "batch_isend_irecv"),
    *("broadcast_object_list", "scatter_object_list", "gather_object", "send_object_list", "recv_object_list"),
)
#: The frame that holds the arguments of a collective as its caller gave them.
C10D_WRAPPER = re.compile(r"/torch/distributed/c10d_logger\.py:\d+ in (?:[\w.<>]+\.)?wrapper$")
#: The outermost function of a process of mp.spawn, ``_wrap(fn, i, args, error_file)`` (torch 2.4 to 2.15).
SPAWNED = re.compile(r"/torch/multiprocessing/spawn\.py:\d+ in _wrap$")
#: The position of the group among the positional arguments of a call (torch 2.4 to 2.15).
GROUP_AT = {
    name: at
    for at, names in {
        0: ("barrier",),
        2: (
            *("all_reduce", "all_reduce_coalesced", "broadcast", "broadcast_object_list", "all_to_all"),
            *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single"),
            *("all_gather_object", "_all_gather_base", "send", "recv", "send_object_list", "recv_object_list"),
        ),
        3: (
            *("reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"),
            *("gather", "gather_object", "scatter", "scatter_object_list"),
        ),
        4: ("all_to_all_single",),
    }.items()
    for name in names
}

#: Thread names (comm) in a process that has joined a group (torch 2.13, gloo and NCCL).
GLOO_WORKER, GLOO_NETWORK, NCCL_WATCHDOG = "pt_gloo_runloop", "gloo_tcp_loop", "pt_nccl_watchdg"
GROUP_THREADS = re.compile(f"{GLOO_WORKER}|{GLOO_NETWORK}|{NCCL_WATCHDOG}|pt_nccl_heartbt")
