"""Processes that are stuck in the driver: a tree in place of /proc, and real processes without any."""

import os
import time
from collections.abc import Callable

from ddp_doctor.checks.node.kernel.processes_in_driver import LOOKS, stuck_processes
from ddp_doctor.model.context import CommandResult
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext

STUCK = "uvm_gpu_retain_by_uuid"


def process(
    pid: int, state: str, channel: str | None = "0", *, switches: int = 17, flags: int = 4194560, folder: str = ""
) -> dict[str, str | OSError]:
    where = f"/proc/{pid}{folder}"
    files: dict[str, str | OSError] = {
        f"{where}/stat": f"{pid} (python3 (x) ) {state} 1 {pid} {pid} 0 -1 {flags} 0 0 0 0 0 0",
        f"{where}/status": f"State:\t{state}\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t3\n",
    }
    return files if channel is None else {**files, f"{where}/wchan": channel}


class Watched(FakeContext):
    """A machine that may change between two samples."""

    meanwhile: Callable[[], None] | None = None
    pauses = 0

    def run(self, argv, timeout_s=None):
        assert argv[0] == "sleep"
        self.pauses += 1
        if self.meanwhile:
            self.meanwhile()
        return CommandResult(tuple(argv), "ended", 0)


def test_a_process_that_waits_in_the_driver_and_never_runs_is_stuck():
    ctx = Watched(files=process(5403, "D", STUCK), links={"/proc/5403/fd/3": "/dev/nvidia0"})
    (one,) = stuck_processes(ctx)
    assert (one.pid, one.name, one.wait_channel, one.device) == (5403, "python3 (x) ", STUCK, "/dev/nvidia0")
    assert ctx.pauses == LOOKS - 1


def test_open_device_is_reported_without_permission_to_see_the_function():
    ctx = Watched(files=process(5403, "D", "0"), links={"/proc/5403/fd/3": "/dev/nvidia-uvm"})
    (one,) = stuck_processes(ctx)
    assert (one.wait_channel, one.device) == (None, "/dev/nvidia-uvm")


def test_a_thread_that_outlives_its_killed_program_is_found():
    files = {**process(77, "Z"), **process(77, "D", "os_acquire_mutex", folder="/task/79")}
    assert [one.pid for one in stuck_processes(Watched(files=files))] == [77]


def test_a_rank_that_waits_for_its_file_system_is_not_stuck_in_the_driver():
    for channel in ("rpc_wait_bit_killable", "folio_wait_bit_common", "io_schedule"):
        ctx = Watched(files=process(5403, "D", channel), links={"/proc/5403/fd/3": "/dev/nvidia0"})
        assert stuck_processes(ctx) == ()


def test_process_that_ran_between_two_samples_was_only_waiting():
    files = process(5403, "D", STUCK)
    ctx = Watched(files=files)
    ctx.meanwhile = lambda: files.update(process(5403, "D", STUCK, switches=18))
    assert stuck_processes(ctx) == ()
    files = process(5403, "D", STUCK)
    ctx = Watched(files=files)
    ctx.meanwhile = files.clear
    assert stuck_processes(ctx) == ()


def test_kernel_threads_running_processes_and_own_children_are_ignored():
    files = {
        **process(10, "D", "nv_queue", flags=0x00200040),
        **process(11, "S", STUCK),
        **process(12, "R", STUCK),
        **process(13, "D", "io_schedule"),
        "/proc/self/stat": "1 (ddp-doctor) R 0 1 1 0 -1 0 ",
        **process(14, "D", STUCK),  # its parent is 1, ddp-doctor in this test
        "/proc/15/stat": "nonsense",
    }
    ctx = Watched(files=files)
    assert stuck_processes(ctx) == ()
    assert ctx.pauses == 0


def test_no_process_is_called_stuck_without_a_pause_between_the_samples():
    assert stuck_processes(FakeContext(files=process(5403, "D", STUCK))) == ()


def test_stuck_processes_of_this_machine_exclude_ddp_doctor():
    found = stuck_processes(LiveContext(os.environ, time.monotonic() + 60))
    assert all(one.pid != os.getpid() for one in found)
