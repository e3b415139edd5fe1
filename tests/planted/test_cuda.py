"""The simulated CUDA alone: it shows GPUs as a driver does."""

import json
import os
import subprocess
import sys

import pytest

from tests.planted import libraries
from tests.waiting import LIMIT_S

ASK = """
import ctypes, json, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
cuda.planted_runtime(int(sys.argv[2]))
def ask():
    count = ctypes.c_int(-1)
    return [cuda.planted_device_count(ctypes.byref(count)), count.value]
os.environ.update(json.loads(sys.argv[1]))
told = [ask()]
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, json.dumps(ask()).encode())
    os._exit(0)
os.close(writer)
told.append(json.loads(os.read(reader, 100)))
print(json.dumps(told))
"""


def asked(machine: str = "four", runtime: int = 12090, /, **env: str) -> list[list[int]]:
    """Code and number of GPUs of a process that sets its environment once the library is loaded, and of its child."""
    whole = {**os.environ, "LD_LIBRARY_PATH": str(libraries()), "NVML_STAND_IN": machine}
    whole.pop("CUDA_VISIBLE_DEVICES", None)
    command = (sys.executable, "-c", ASK, json.dumps(env), str(runtime))
    done = subprocess.run(command, env=whole, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    answer: list[list[int]] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("shown", "count"),
    [
        ("1,3", 2),
        ("3,x,1", 1),  # the first that names nothing ends the list
        ("9", 0),
        ("0,0", 0),  # a GPU named twice hides all
        ("", 0),
        ("GPU-8932f932-d72c,0", 2),
    ],
)
def test_visible_gpus_are_fixed_by_the_environment_at_the_first_call(shown: str, count: int):
    assert asked(CUDA_VISIBLE_DEVICES=shown)[0] == [0 if count else 100, count]


@pytest.mark.parametrize("shown", [None, "3", "MIG-5e7d0005-0000-4000-8000-000000000001", "MIG-5e7d0005,MIG-5e7d0006"])
def test_process_on_a_machine_with_slices_sees_one(shown: str | None):
    env = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}

    assert asked("mig_all", **env)[0] == [0, 1]


def test_cuda_13_refuses_a_driver_of_cuda_12():
    insufficient_driver = 35

    assert asked("four", 13020)[0] == [insufficient_driver, 0]
    assert asked("four,driver_580", 13020)[0] == [0, 4]


def test_a_child_forked_after_the_first_call_can_use_no_gpu():
    initialization_error = 3

    assert asked() == [[0, 4], [initialization_error, 0]]
