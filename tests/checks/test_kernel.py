"""The kernel check: the probe on a machine of files and commands."""

import os
import time

import pytest

from ddp_doctor.checks.node.kernel import afterwards, probe
from ddp_doctor.model.context import CommandResult
from ddp_doctor.model.fact import Absent, Skip
from ddp_doctor.probing.kernel import read_log
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext
from tests.waiting import LIMIT_S

XID = "NVRM: Xid (PCI:0000:61:00): "
REFUSED = CommandResult(("dmesg",), "ended", 1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")

PCI = "/sys/bus/pci/devices"
FILES: dict[str, str | OSError] = {
    f"{PCI}/0000:61:00.0/vendor": "0x10de\n",
    f"{PCI}/0000:61:00.0/class": "0x030200\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\n",
    "/proc/uptime": "1000.00 4000.00\n",
    "/proc/stat": "cpu  1 2 3\nbtime 1714560000\n",
    "/sys/module/nvidia/version": "550.90.07\n",
    "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "/proc/sys/kernel/osrelease": "5.15.0-131-generic\n",
}
LINKS = {
    f"{PCI}/0000:61:00.0": "../../../devices/pci0000:5d/0000:5d:01.0/0000:5e:00.0/0000:61:00.0",
    f"{PCI}/0000:61:00.0/driver": "../../../../bus/pci/drivers/nvidia",
    f"{PCI}/0000:17:00.0": "../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0",
    "/sys/class/infiniband/mlx5_0/device": "../../../0000:17:00.0",
    "/sys/class/infiniband/mlx5_0/device/driver": "../../../../bus/pci/drivers/mlx5_core",
}


# --- the probe ------------------------------------------------------------------------------------------


def test_probe_reports_what_the_kernel_shows_of_gpus_and_nics():
    context = FakeContext(files=FILES, links=LINKS, commands={"dmesg": f"[  900.500000] {XID}79, lost\n"})
    fact = probe(context)
    assert (fact.driver_version, fact.driver_is_open, fact.log_source) == ("550.90.07", False, "dmesg")
    assert fact.bridges == {"0000:61:00.0": ("0000:5d:01.0", "0000:5e:00.0"), "0000:17:00.0": ("0000:16:01.0",)}
    assert fact.rdma_devices == {"0000:17:00.0": "mlx5_0"}
    assert [(one.code, fact.age_s(one)) for one in fact.events] == [(79, 99.5)]
    assert f"{XID}79, lost" in (context.raw or "")


def test_no_command_runs_without_gpu_and_rdma_device():
    class Quiet(FakeContext):
        def run(self, argv, timeout_s=None):
            raise AssertionError(argv)

    with pytest.raises(Absent, match="no NVIDIA GPU and no RDMA device"):
        probe(Quiet(files={f"{PCI}/0000:00:02.0/vendor": "0x1a03\n"}))


def test_kernel_log_of_this_machine_is_read():
    try:
        fact = probe(LiveContext(os.environ, time.monotonic() + LIMIT_S))
    except Absent:
        fact = None
    assert fact is None or fact.log_source or fact.log_problem


def test_journal_replaces_a_refused_dmesg():
    journal = "1714560010.120000 node7 kernel: nvidia: loading out-of-tree module taints kernel.\n"
    log = read_log(FakeContext(commands={"dmesg": REFUSED, "journalctl": journal}))
    assert (log.source, log.text, log.problem) == ("journalctl", journal, None)


def test_a_file_of_syslog_is_the_last_resort():
    empty = CommandResult(("journalctl",), "ended", 0, "-- No entries --\n", "")
    text = "Dec  2 11:49:53 node7 kernel: [  885.242168] NVRM: …\n"
    log = read_log(FakeContext(commands={"dmesg": REFUSED, "journalctl": empty, "tail": text}))
    assert (log.source, log.text) == ("/var/log/kern.log", text)


def test_unreadable_log_has_a_reason():
    log = read_log(FakeContext(commands={"dmesg": REFUSED}))
    assert log.source is None
    assert (log.problem or "").startswith("dmesg: read kernel buffer failed: Operation not permitted")
    assert "journalctl: not installed" in (log.problem or "")


# --- the probe after the ranks --------------------------------------------------------------------------


def test_the_probe_after_the_ranks_reads_the_last_hour_of_the_log():
    uptime: dict[str, str | OSError] = {**FILES, "/proc/uptime": "9000.00 1.00\n"}
    lines = f"[  100.000000] {XID}79, lost\n[ 8000.000000] {XID}79, lost\n"
    fact = afterwards.probe(FakeContext(files=uptime, links=LINKS, commands={"dmesg": lines}))
    assert [(one.code, one.count) for one in fact.events] == [(79, 1)]


def test_unreadable_log_after_the_ranks_gives_a_reason_and_no_fact():
    with pytest.raises(Skip, match="cannot read the kernel log: dmesg"):
        afterwards.probe(FakeContext(files=FILES, links=LINKS, commands={"dmesg": REFUSED}))
    with pytest.raises(Absent):
        afterwards.probe(FakeContext())
