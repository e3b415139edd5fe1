"""What a rank does, by the frames of its Python stack (paths and functions of torch 2.4 to 2.15)."""

import re
from typing import Literal, NamedTuple

Activity = Literal["data", "compile", "checkpoint", "start", "evaluation"]


class Frames(NamedTuple):
    """Frames of one activity. A rank is in it where any of its frames matches, ``FILE:LINE in FUNCTION``."""

    activity: Activity
    words: str  # what a person says: "compiles"
    pattern: re.Pattern[str]


#: The first that matches counts.
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
    Frames(
        "checkpoint",
        "saves or loads a checkpoint",
        re.compile(
            r"/torch/serialization\.py|/torch/distributed/checkpoint/|/safetensors/"
            r"|in (?:[\w.<>]+\.)?_?(?:save|load|write|read)_\w*(?:checkpoint|ckpt|state|model)\w*$"
        ),
    ),
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

#: Files in which torch waits for other ranks: where the innermost frame is in one of them, the rank is in a collective,
#: or in the meeting before the first one.
COLLECTIVE_FILES = re.compile(
    r"/torch/distributed/(?:distributed_c10d|_functional_collectives|rendezvous|utils|nn/functional"
    r"|algorithms/join|elastic/utils/store|_symmetric_memory/__init__)\.py:"
    r"|/torch/distributed/fsdp/|/torch/nn/parallel/distributed\.py:"
)
#: Frames that only pass a call on, between the user's line and the call.
WRAPPERS = re.compile(r"in (?:[\w.<>]+\.)?(?:wrapper|_fn|inner|decorate_context|__call__)$")
#: A backward pass: DDP's reduction of gradients ends within it.
BACKWARD = re.compile(r"/torch/autograd/(?:graph|__init__)\.py:\d+ in ")
#: The text of a line in which a rank waits for work that it queued, or for its GPU, in C++.
WAITS_FOR_WORK = re.compile(r"\.wait\(")
WAITS_FOR_GPU = re.compile(r"\.(?:item|cpu|tolist|numpy|synchronize|nonzero)\(|\.to\(|\bfloat\(")
IN_CUDA_WAIT = re.compile(r"/torch/cuda/(?:__init__|streams)\.py:\d+ in (?:\w+\.)?(?:synchronize|wait)")
#: Calls in which ranks meet at a store, of which some kinds are asked again and again (FileStore).
MEETINGS = ("init_process_group", "new_group", "new_subgroups", "monitored_barrier", "split_group")
#: Roots of these may go on before the others have the data.
ROOTED = ("broadcast", "scatter", "send", "isend", "broadcast_object_list", "scatter_object_list")
