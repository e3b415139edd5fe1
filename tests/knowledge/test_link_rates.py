"""NCCL's own constants, as they combine to the rate of a path."""

import pytest

from ddp_doctor.knowledge.topology import link_rates as rates


@pytest.mark.parametrize(
    ("capability", "links", "expected"),
    [
        ("9.0", 18, 370.8),
        ("8.0", 12, 240.0),
        ("7.0", 6, 120.0),
        ("10.0", 18, 721.8),
        ("8.6", 4, 48.0),
        ("8.9", 4, 80.0),
    ],
)
def test_nvlinks_of_a_generation(capability: str, links: int, expected: float):
    assert rates.nvlink(capability, links) == pytest.approx(expected)


def test_nccl_that_does_not_know_blackwell_treats_it_as_hopper():
    assert rates.nvlink("10.0", 18, (2, 21, 5)) == rates.nvlink("9.0", 18, (2, 21, 5)) == pytest.approx(370.8)
    assert rates.nvlink("10.0", 18, (2, 27, 5)) == pytest.approx(721.8)


@pytest.mark.parametrize("capability", [None, "", "9", "x.y", "5.2"])
def test_nvlinks_of_an_unknown_generation_are_unknown(capability: str | None):
    assert rates.nvlink(capability, 4) is None


def test_pcie_is_counted_by_generation_and_lanes():
    assert rates.pcie(4, 16) == 24.0
    assert rates.pcie(5, 8) == 24.0
    assert rates.pcie(None, 16) is None
    assert rates.pcie(4, 0) is None
    assert rates.pcie(9, 16) is None


@pytest.mark.parametrize(
    ("vendor", "family", "model", "expected"),
    [
        ("GenuineIntel", 6, 0x4F, 6.0),
        ("GenuineIntel", 6, 0x55, 10.0),
        ("GenuineIntel", 6, 0x6A, 10.0),
        ("GenuineIntel", 6, 0x8F, 22.0),
        ("GenuineIntel", 6, 0xAD, 40.0),
        ("GenuineIntel", 6, 0xCF, 40.0),
        ("GenuineIntel", None, None, None),
        ("AuthenticAMD", 23, None, 16.0),
        ("AuthenticAMD", 25, None, 24.0),
        ("AuthenticAMD", 26, None, 32.0),
        ("AuthenticAMD", None, None, 16.0),
        ("ARM", None, None, 6.0),
        ("Shanghai", 7, 1, None),
        (None, None, None, None),
    ],
)
def test_link_between_sockets(vendor: str | None, family: int | None, model: int | None, expected: float | None):
    assert rates.between_sockets(vendor, family, model) == expected


@pytest.mark.parametrize(
    ("vendor", "family", "model", "of_releases"),
    [
        ("GenuineIntel", 6, 0x8F, (10.0, 22.0, 22.0, 22.0)),
        ("GenuineIntel", 6, 0xCF, (10.0, 40.0, 40.0, 40.0)),
        ("GenuineIntel", 6, 0xAD, (10.0, 22.0, 22.0, 40.0)),
        ("AuthenticAMD", 25, None, (16.0, 16.0, 16.0, 24.0)),
    ],
)
def test_newer_releases_of_nccl_assume_a_faster_link_between_sockets(
    vendor: str, family: int, model: int | None, of_releases: tuple[float, ...]
):
    releases = ((2, 21, 5), (2, 27, 5), (2, 30, 7), (2, 32, 3))
    assert tuple(rates.between_sockets(vendor, family, model, one) for one in releases) == of_releases


def test_peer_traffic_through_intel_cpus_is_slower():
    assert rates.through_cpu(12.0, "GenuineIntel") == pytest.approx(10.0)
    assert rates.through_cpu(12.0, "AuthenticAMD") == 12.0
    assert rates.through_cpu(None, "GenuineIntel") is None


def test_path_is_as_fast_as_its_slowest_part_and_unknown_if_one_is():
    assert rates.slowest([24.0, 10.0]) == 10.0
    assert rates.slowest([24.0, None]) is None
    assert rates.slowest([]) is None


def test_network_by_its_speed():
    assert rates.network(100_000) == 12.5
    assert rates.network(-1) is None
    assert rates.network(None) is None


def test_generation_of_nvlink_and_pcie_by_their_speed():
    assert rates.nvlink_of_speed(26.562, 18) == pytest.approx(370.8)
    assert rates.nvlink_of_speed(25.781, 12) == pytest.approx(240.0)
    assert rates.nvlink_of_speed(14.062, 4) == pytest.approx(48.0)
    assert rates.nvlink_of_speed(1.0, 4) is None
    assert rates.nvlink_of_speed(None, 4) is None
    assert rates.pcie_generation("32.0 GT/s PCIe") == 5
    assert rates.pcie_generation("16 GT/s") == 4
    assert rates.pcie_generation("Unknown") is None
    assert rates.pcie_generation(None) is None
