"""Frames of a stack that belong to the job's own code, and the part of the user's model that they run."""

import pytest

from ddp_doctor.parse.frames import called, fatal_stack, of_the_job

DOCTOR = ["<string>:1 in <module>", "/opt/ddp-doctor/ddp_doctor/ranks/worker.py:50 in forked"]
PROBE = "/opt/ddp-doctor/ddp_doctor/features/model/user_model/probing"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
WAITS = "/home/user/net.py:15 in wait"

IMPORT = [f"{PROBE}/user_code.py:150 in find", "/usr/lib64/python3.11/importlib/__init__.py:126 in import_module"]
FORWARD = [f"{PROBE}/batches.py:91 in forward", f"{TORCH}/nn/modules/module.py:1884 in _call_impl"]
BACKWARD = [f"{PROBE}/passes.py:71 in run", f"{TORCH}/_tensor.py:623 in backward"]


@pytest.mark.parametrize(
    ("stack", "running"),
    [
        ([*IMPORT, "<frozen importlib._bootstrap>:690 in _load_unlocked"], "the import of your module"),
        ([f"{PROBE}/user_code.py:198 in made"], "the function that builds your model"),
        ([f"{PROBE}/batches.py:157 in make"], "your make_batch"),
        (FORWARD, "your forward"),
        ([f"{PROBE}/batches.py:95 in loss", f"{PROBE}/batches.py:281 in _own_loss"], "your loss"),
        (BACKWARD, "your backward"),
        ([*FORWARD, "/home/user/net.py:9 in forward", f"{TORCH}/_tensor.py:623 in backward"], "your backward"),
        ([*BACKWARD, f"{TORCH}/utils/checkpoint.py:9 in recompute"], "your backward"),
    ],
)
def test_running_part_of_the_users_model_is_found_by_its_caller(stack, running):
    assert called([*DOCTOR, *stack, WAITS]) == running
    assert of_the_job([*DOCTOR, *stack, WAITS])[-1] == WAITS


def test_frames_of_a_ddp_doctor_check_are_not_user_code():
    stack = [*DOCTOR, "/opt/ddp-doctor/ddp_doctor/checks/collectives/p2p.py:9 in probe", f"{TORCH}/x.py:1 in f"]

    assert (called(stack), of_the_job(stack)) == ("", [])
    assert called([*DOCTOR, *FORWARD]) == ""  # in DDP, without a line of the user's code


def test_library_is_named_only_without_a_line_of_the_user():
    library = "/opt/venv/lib/python3.11/site-packages/hub/load.py:7 in fetch"

    assert of_the_job([*DOCTOR, WAITS, library]) == [WAITS]
    assert of_the_job([*DOCTOR, library, f"{TORCH}/x.py:1 in f"]) == [library]


CRASHED = """loading the data set
Fatal Python error: Segmentation fault

Thread 0x00007f4e155ff6c0 (most recent call first):
  File "/usr/lib/python3.11/signal.py", line 82 in sigwait

Current thread 0x00007f4e3905cb80 [python] (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/my net.py", line 7 in make
  ...

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python", at _Py_DumpStack+0x2b [0x5f0]

Extension modules: numpy._core._multiarray_umath (total: 1)
"""


def test_line_of_a_crash_belongs_to_the_faulting_thread():
    assert fatal_stack(CRASHED) == (
        "/home/me/my net.py:7 in make",
        "/usr/lib/python3.11/ctypes/__init__.py:519 in string_at",
    )
