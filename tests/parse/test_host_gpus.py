"""The kernel's files about GPUs and containers."""

import pytest

from ddp_doctor.probing.host_gpus import device_nodes, fabric_manager_runs, in_container, pci_gpus
from tests.fakes import FakeContext

DEVICE = "/sys/bus/pci/devices/0000:61:00.0"


@pytest.mark.parametrize(
    ("cgroup", "inside"),
    [
        ("0::/init.scope\n", False),
        ("1:name=systemd:/init.scope\n0::/init.scope\n", False),
        ("0::/\n", False),
        ("0::/kubepods/besteffort/pod3c0f\n", True),
        ("12:devices:/docker/9f3a\n0::/docker/9f3a\n", True),
        ("0::/../../kubelet.slice/cri-containerd-5.scope\n", True),
        ("0::/machine.slice/libpod-77.scope/container\n", True),
        ("0::/lxc/web\n", True),
        ("0::/system.slice/slurmd.service\n", False),
    ],
)
def test_a_container_shows_in_the_cgroup_of_its_first_process(cgroup: str, inside: bool) -> None:
    assert in_container(FakeContext(files={"/proc/1/cgroup": cgroup})) is inside


@pytest.mark.parametrize("path", ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"])
def test_a_container_shows_in_its_mark(path: str) -> None:
    assert in_container(FakeContext(files={path: ""}))


@pytest.mark.parametrize("name", ["container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER"])
def test_a_container_shows_in_its_environment(name: str) -> None:
    assert in_container(FakeContext(env={name: "x"}))
    assert not in_container(FakeContext(env={name: ""}))


def test_unreadable_file_is_not_a_container() -> None:
    assert not in_container(FakeContext(files={"/proc/1/cgroup": PermissionError(13, "denied")}))


@pytest.mark.parametrize(
    ("vendor", "kind", "count"),
    [("0x10de", "0x030000", 1), ("0x10de", "0x030200", 1), ("0x10de", "0x040300", 0), ("0x1002", "0x030000", 0)],
)
def test_only_nvidias_display_devices_are_gpus(vendor: str, kind: str, count: int) -> None:
    files = {f"{DEVICE}/vendor": f"{vendor}\n", f"{DEVICE}/class": f"{kind}\n"}
    found = pci_gpus(FakeContext(files=files, links={f"{DEVICE}/driver": "../../bus/pci/drivers/nvidia"}))
    assert [(gpu.bus_id, gpu.driver) for gpu in found or ()] == [("0000:61:00.0", "nvidia")] * count


def test_a_bus_that_cannot_be_read_is_not_an_empty_one() -> None:
    assert pci_gpus(FakeContext()) is None


def test_device_nodes_are_nvidias_and_amds() -> None:
    files = {f"/dev/{name}": "" for name in ("nvidia0", "nvidiactl", "null", "kfd")}
    assert device_nodes(FakeContext(files=files)) == ("kfd", "nvidia0", "nvidiactl")
    assert device_nodes(FakeContext()) == ()


SWITCHES = ("nvidia-nvswitch0", "nvidia-nvswitchctl", "nvidia0")
INIT = {"/proc/1/comm": "systemd\n"}


@pytest.mark.parametrize(
    ("files", "nodes", "runs"),
    [
        ({**INIT, "/proc/2201/comm": "nv-fabricmanage\n"}, SWITCHES, True),
        ({**INIT, "/proc/2201/comm": "python\n"}, SWITCHES, False),
        ({**INIT, "/proc/2201/comm": "nv-fabricmanage\n"}, ("nvidia0",), None),  # no NVSwitch, no need
        ({**INIT, "/.dockerenv": ""}, SWITCHES, None),
        ({"/proc/2201/comm": "python\n"}, SWITCHES, None),  # /proc mounted with hidepid
    ],
)
def test_fabric_manager_is_searched_if_processes_are_visible(
    files: dict[str, str], nodes: tuple[str, ...], runs: bool | None
) -> None:
    assert fabric_manager_runs(FakeContext(files=files), nodes) is runs
