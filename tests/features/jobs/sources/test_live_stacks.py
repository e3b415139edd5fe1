"""Stacks as py-spy prints them: the place of a backward, and whether a call was given a group."""

from typing import Any

import pytest

from ddp_doctor.features.jobs.sources import live_stacks

C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = C10D.replace("distributed_c10d", "c10d_logger")
TENSOR, GROUP = "<Tensor at 0x7f00>", "<torch._C._distributed_c10d.ProcessGroup at 0x7f01>"


def frame(file: str, name: str, **variables: str) -> dict[str, Any]:
    shown = [{"name": key, "repr": value} for key, value in variables.items()]
    return {"filename": file, "name": name, "line": 83, "locals": shown}


MAIN = frame("/home/me/train.py", "main", group=GROUP, args="()")


def called(call: str, args: str, kwargs: str = "{}") -> list[dict[str, Any]]:
    """Return the frames of the script, torch's wrapper and the call, which has replaced None with the default group."""
    wrapper = frame(LOGGER, "_exception_logger.<locals>.wrapper", args=args, kwargs=kwargs)
    return [MAIN, wrapper, frame(C10D, call, group=GROUP)]


@pytest.mark.parametrize(
    ("frames", "is_default"),
    [
        (called("barrier", "()"), True),
        (called("barrier", f"({GROUP})"), None),
        (called("barrier", "(None)"), True),
        (called("barrier", "()", '{"device_ids": [0, 1]}'), True),
        (called("all_reduce", f"({TENSOR})"), True),
        (called("all_reduce", f"({TENSOR})", f'{{"op": <RedOpType at 0x7f>, "group": {GROUP}}}'), None),
        (called("all_reduce", f"({TENSOR})", '{"async_op": False, "group": None}'), True),
        (called("all_reduce", f"({TENSOR}, <RedOpType at 0x7f02>, {GROUP})"), None),
        (called("broadcast", f"({TENSOR}, 0)"), True),
        (called("broadcast", "()", f'{{"tensor": {TENSOR}, "src": 0}}'), True),
        (called("all_gather", f"([{TENSOR}, {TENSOR}, {TENSOR}, {TENSOR}], {TENSOR})"), True),
        (called("all_gather", f"([{TENSOR}, {TENSOR}, ...], ...)"), None),
        (called("gather_object", '("a, (b", [None, None], 0)'), True),
        (called("all_to_all_single", f"({TENSOR}, {TENSOR}, [1, 2], [2, 1])"), True),
        (called("something_new", f"({TENSOR})"), None),
        ([MAIN, frame(C10D, "monitored_barrier", group="None")], True),
        ([MAIN, frame(C10D, "monitored_barrier", group=GROUP)], None),
        ([MAIN, frame(C10D.replace("distributed_c10d", "fsdp/_runtime_utils"), "_post", state="-"),
          *called("all_gather_into_tensor", f"({TENSOR}, {TENSOR})", f'{{"group": {GROUP}}}')[1:]], None),
        ([MAIN], None),
    ],
)  # fmt: skip
def test_call_is_on_the_default_group_only_if_it_was_given_no_group(frames, is_default):
    assert live_stacks._on_default_group(frames) is is_default


AUTOGRAD = "/opt/venv/lib/python3.11/site-packages/torch/autograd/"
IN_BACKWARD = [MAIN, frame(f"{AUTOGRAD}graph.py", "_engine_run_backward")]
OWN = [frame(f"{AUTOGRAD}function.py", "apply"), frame("/home/me/train.py", "backward")]
OTHER = [frame("/usr/lib/python3.11/threading.py", "_bootstrap"), frame("/home/me/train.py", "read_ahead")]


@pytest.mark.parametrize(
    ("main", "others", "stack"),
    [(IN_BACKWARD, [OTHER, OWN], [*IN_BACKWARD, *OWN]), (IN_BACKWARD, [OTHER], IN_BACKWARD), ([MAIN], [OWN], [MAIN])],
    ids=["within the user's own backward", "in a kernel", "not in a backward"],
)
def test_backward_on_a_gpu_continues_in_the_autograd_thread(main, others, stack):
    threads = [{"frames": list(reversed(frames))} for frames in (main, *others)]

    assert live_stacks._frames(threads[0], threads) == stack
