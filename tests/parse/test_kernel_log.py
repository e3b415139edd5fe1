"""The kernel log in all its forms: the relevant lines, their device and their time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.checks.node.kernel.kernel_log import MOST_GROUPS, MOST_LINES, parse_kernel_log
from ddp_doctor.facts.node.kernel import KernelEvent

LOST = "NVRM: Xid (PCI:0000:2b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
BOOT = 1714560000.0
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.195.03  Release Build  (dvs-builder@U22)"


def events(*lines: str) -> tuple[KernelEvent, ...]:
    return parse_kernel_log("\n".join(lines), BOOT).events


def only(*lines: str) -> KernelEvent:
    (event,) = events(*lines)
    return event


@pytest.mark.parametrize(
    ("line", "at_s"),
    [
        (f"[74889.644138] {LOST}", 74889.644138),
        (f"[   12.250000][  T291] {LOST}", 12.25),
        (f"<3>[   12.250000] {LOST}", 12.25),
        (f"kern  :err   : [   12.250000] {LOST}", 12.25),
        (f"{BOOT + 30:.6f} node7 kernel: {LOST}", 30.0),
        (f"Dec  2 11:49:53 node7 kernel: [  885.242168] {LOST}", 885.242168),
        (f"2024-05-01T10:41:00.120000+00:00 node7 kernel: {LOST}", 60.0),
        (f"2024-05-01T12:41:00+02:00 node7 kernel: [   61.500000] {LOST}", 61.5),
        (f"[Sat Oct 12 18:35:32 2024] {LOST}", None),
        (f"Dec  2 11:49:53 node7 kernel: {LOST}", None),
        (f"2024-02-31T10:41:00+00:00 node7 kernel: {LOST}", None),
    ],
)
def test_an_xid_is_read_in_every_form_of_the_log(line: str, at_s: float | None):
    event = only(line)
    assert (event.kind, event.device, event.code, event.count) == ("xid", "0000:2b:00.0", 79, 1)
    assert event.text == LOST
    assert event.last_at_s == (None if at_s is None else pytest.approx(at_s))


@pytest.mark.parametrize(
    ("line", "device", "code", "pids", "detail"),
    [
        ("NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=python3, Ch 0000000a", "0000:61:00.0", 45, (1496200,), ""),
        ("NVRM: Xid (PCI:0000:C1:00): 13, pid='77', name=python, Graphics", "0000:c1:00.0", 13, (77,), ""),
        ("NVRM: Xid (0000:01:00): 56, CMDre 00000000 00000080", "0000:01:00.0", 56, (), ""),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 31, pid=9, name=x", "0000:3b:00.0", 31, (9,), ""),
        ("NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406)", "0019:01:00.0", 149, (), "Fatal"),
        ("NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13", "0018:01:00.0", 145, (), "Nonfatal"),
    ],
)
def test_xids_of_all_drivers_name_device_process_and_gravity(
    line: str, device: str, code: int, pids: tuple[int, ...], detail: str
):
    event = only(f"[1.000000] {line}")
    assert (event.device, event.code, event.pids, event.detail) == (device, code, pids, detail)


@pytest.mark.parametrize(
    ("line", "kind", "device"),
    [
        ("NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)", "init_failed", "0000:0a:00.0"),
        ("NVRM: RmInitAdapter failed! (0x26:0x38:1096)", "init_failed", None),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS", "sxid", "0000:c1:00.0"),
        (
            "pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            "pcie_uncorrected",
            "0000:00:02.0",
        ),
        (
            "nvidia 0000:02:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
            "pcie_uncorrected",
            "0000:02:00.0",
        ),
        (
            "pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
            "pcie_corrected",
            "0000:00:03.1",
        ),
        (
            "mlx5_core 0000:17:00.0: poll_health:739:(pid 0): device's health compromised - reached miss count",
            "nic_fault",
            "0000:17:00.0",
        ),
        ("INFO: task nvc:[driver]:5403 blocked for more than 120 seconds.", "hung_task", None),
    ],
)
def test_other_faults_are_distinguished(line: str, kind: str, device: str | None):
    event = only(f"[1.000000] {line}")
    assert (event.kind, event.device, event.text) == (kind, device, line)


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002b, 0x0000002b, 0x00000000}",
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: GPU at PCI:0000:02:00: GPU-660d987e-5b28-3bf6-2a2d-1d5ecae7f6df",
        "mlx5_core 0000:17:00.0: mlx5_pcie_event:299:(pid 8): Detected insufficient power on the PCIe slot (27W).",
        "pcieport 0000:00:1c.5: AER: Corrected error received: 0000:00:1c.5",
        "nvidia: module license 'NVIDIA' taints kernel.",
    ],
)
def test_details_and_common_lines_are_not_events(line: str):
    assert events(f"[1.000000] {line}") == ()


def test_hung_task_has_its_name_pid_and_seconds():
    event = only("[601.023951] INFO: task nvc:[driver]:5403 blocked for more than 120 seconds.")
    assert (event.detail, event.pids, event.code) == ("nvc:[driver]", (5403,), 120)


def test_withdrawn_recovery_action_ends_the_xids_of_that_gpu_only():
    asked = "recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    over = "recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    found = events(
        "[1.000000] NVRM: Xid (PCI:0000:2b:00): 119, pid=1, name=x, Timeout",
        f"[1.100000] NVRM: Xid (PCI:0000:2b:00): 154, GPU {asked}",
        "[2.000000] NVRM: Xid (PCI:0000:61:00): 119, pid=1, name=x, Timeout",
        f"[3.000000] NVRM: Xid (PCI:0000:2b:00): 154, GPU {over}",
    )
    assert {(one.device, one.code, one.detail) for one in found if not one.past} == {("0000:61:00.0", 119, "")}


def test_a_nic_that_recovered_has_no_standing_fault():
    found = events(
        "[1.000000] mlx5_core 0000:17:00.0: poll_health:739:(pid 0): Fatal error 1 detected",
        "[2.000000] mlx5_core 0000:17:00.0: mlx5_health_try_recover:335:(pid 77): health recovery succeeded",
    )
    assert [(one.kind, one.past) for one in found] == [("nic_fault", True)]


def test_start_time_of_a_log_without_its_first_lines_is_known():
    assert parse_kernel_log("[22845.204479] br0: port 1(p0-0) entered disabled state").begins_at_s == 22845.204479


@pytest.mark.parametrize(
    "junk",
    [
        "x" * 10_000_000,
        f"{LOST}\n" * 100_000,
        "NVRM: " * 1_600_000,
        ("mlx5_core 0000:17:00.0: " * 40 + "\n") * 10_000,
        "[ 12.300000] a line of the kernel that says nothing at all to us, as most of them do\n" * 120_000,
        "NVRM: Xid (PCI:" + "0" * 9_000_000,
        "[" * 5_000_000,
    ],
    ids=["one-line", "one-xid", "words", "nic-words", "ordinary", "digits", "brackets"],
)
@pytest.mark.fuzz
def test_ten_megabytes_of_junk_take_bounded_time_and_leave_little(junk: str):
    started = time.process_time()
    log = parse_kernel_log(junk)
    assert time.process_time() - started < 20
    assert len(log.events) <= 1
    assert sum(map(len, log.lines)) < 100_000


def test_a_thousand_devices_leave_a_bounded_number_of_events():
    lines = (f"[1.000000] NVRM: Xid (PCI:{n:04x}:00:00): 31, pid={n}, name=x" for n in range(1000))
    log = parse_kernel_log("\n".join(lines))
    assert (len(log.events), len(log.lines)) == (MOST_GROUPS, MOST_LINES)
    assert log.events[-1].device == "03e7:00:00.0"


_WORDS = st.sampled_from(
    ("NVRM: Xid (PCI:", "0000:2b:00", "): 79, ", "pid=", "SXid (PCI:", "PCIe Bus Error: severity=", "[", "]", "12.5",
     "mlx5_core ", "kernel: ", "INFO: task ", ":5 blocked for more than ", "\n", "\x00", "٣", "154, ", "(None)")
)  # fmt: skip


@given(st.lists(st.one_of(_WORDS, st.text(max_size=8)), max_size=60), st.none() | st.floats(0, 2e9))
def test_any_log_is_read_without_a_crash(parts: list[str], booted_at: float | None):
    for event in parse_kernel_log("".join(parts), booted_at).events:
        assert event.count >= 1
        assert len(event.text) <= 300


BEGIN, MIDDLE = "NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:26b5) installed in this system has"
END = "NVRM: fallen off the bus and is not responding to commands."
INDENT = " " * 15


@pytest.mark.parametrize(
    ("lines", "at_s"),
    [
        ((f"[ 1843.308145] {BEGIN}", f"{INDENT}{MIDDLE}", f"{INDENT}{END}"), 1843.308145),
        (tuple(f"<3>[ 1843.308145] {line}" for line in (BEGIN, MIDDLE, END)), 1843.308145),
        (tuple(f"[ 1843.308145][  T291] {line}" for line in (BEGIN, MIDDLE, END)), 1843.308145),
        ((f"{BOOT + 30:.6f} n7 kernel: {BEGIN}", f"{INDENT}{MIDDLE}", f"{INDENT}{END}"), 30.0),
        (tuple(f"Dec  2 11:49:53 n7 kernel: [  885.242168] {line}" for line in (BEGIN, MIDDLE, END)), 885.242168),
        ((f"Dec  2 11:49:53 n7 kernel: [  885.242168] {BEGIN}#012{MIDDLE}#012{END}",), 885.242168),
        ((f"2024-05-01T10:41:00+00:00 n7 kernel: {BEGIN}\\x0a{MIDDLE}\\x0a{END}",), 60.0),
        ((f"[Sat Oct 12 18:35:32 2024] {BEGIN}", f"{INDENT}{MIDDLE}", f"{INDENT}{END}"), None),
        ((f"[9.5] {BEGIN} (PCI ID: 10de:1e07) installed in this", f"NVRM: system has {END[6:]}"), 9.5),
        ((f"[9.5] {BEGIN}", "(PCI ID: 10de:26b5)", f"has {END[6:]}"), 9.5),
        ((f"[9.5] {BEGIN}", "[9.6] usb 1-1: new device", f"[9.7] {LOADED[:14]}x", f"{MIDDLE}", f"{END}"), 9.5),
        ((f"[9.5] {BEGIN} installed in this system has {END[6:]}",), 9.5),
        (("[9.5] NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",), 9.5),
        (("[9.5] NVRM: GPU at 0000:b3:00.0 has fallen off the bus.",), 9.5),
    ],
)
def test_a_gpu_off_the_bus_without_an_xid_is_read_in_every_form_of_the_log(lines: tuple[str, ...], at_s: float | None):
    event = only(*lines, "[9999.0] NVRM: The NVIDIA probe routine failed for 1 device(s).")
    assert (event.kind, event.device, event.code, event.count) == ("off_bus", "0000:b3:00.0", None, 1)
    assert event.text.startswith("NVRM: ")
    assert "fallen off the bus" in event.text
    assert event.last_at_s == (None if at_s is None else pytest.approx(at_s))


@pytest.mark.parametrize(
    "lines",
    [
        (BEGIN, "NVRM: installed in this system is not supported by the", "NVRM: 535.54.03 driver release."),
        (BEGIN, "NVRM: installed in this system requires use of the NVIDIA open kernel modules."),
        (BEGIN, MIDDLE),
        (MIDDLE, END),
        (BEGIN, *(["[9.6] usb 1-1: new device"] * 20), MIDDLE, END),
        ("usb 3-1: the NVIDIA GPU 0000:b3:00.0 has fallen off the bus",),
    ],
)
def test_driver_message_about_something_else_names_no_gpu(lines: tuple[str, ...]):
    assert events(*(f"[9.5] {line}" for line in lines)) == ()


def test_complete_one_of_two_interleaved_messages_names_its_gpu():
    other = BEGIN.replace("b3", "c4")
    unsupported = "NVRM: installed in this system is not supported by the"
    assert only(*(f"[9.5] {line}" for line in (other, unsupported, BEGIN, MIDDLE, END))).device == "0000:b3:00.0"


def test_gpu_found_off_the_bus_stays_off_until_the_next_driver_load():
    lost = tuple(f"[9.5] {line}" for line in (BEGIN, MIDDLE, END))
    assert not only(*lost, f"[9.7] {LOADED}").past
    assert only(*lost, f"[9.7] {LOADED}", f"[99.7] {LOADED}").past
    assert not only(*lost, f"[9.7] {LOADED}", f"[99.1] {BEGIN}", MIDDLE, END, f"[99.7] {LOADED}").past
