import pytest

from ddp_doctor.knowledge.topology import link_codes as codes


@pytest.mark.parametrize(
    ("value", "path"),
    [("SYS", "SYS"), ("PXB", "PXB"), ("NVL", "NVL"), ("0", "LOC"), ("2", "PXB"), ("4", "SYS"), ("9", "SYS")],
)
def test_levels_that_nccl_reads(value: str, path: str):
    assert codes.p2p_level(value) == path


@pytest.mark.parametrize("value", ["sys", "NODE", "", "-1", "yes"])
def test_levels_that_nccl_ignores(value: str):
    assert codes.p2p_level(value) is None


def test_nearer_codes_come_first():
    near_to_far = ["X", "NV12", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert sorted(near_to_far, key=lambda code: codes.link_code(code).distance) == near_to_far
    assert codes.link_code("SOC").distance == codes.link_code("SYS").distance


def test_unknown_code_is_an_error():
    with pytest.raises(KeyError):
        codes.link_code("NV")


@pytest.mark.parametrize(
    ("gpus", "vendor", "level", "limit"),
    [
        (2, "AuthenticAMD", None, "SYS"),
        (2, None, None, "SYS"),
        (4, "AuthenticAMD", None, "PXB"),
        (2, "GenuineIntel", None, "PXB"),
        (2, "ARM", None, "PXB"),
        (8, "GenuineIntel", "SYS", "SYS"),
        (2, "AuthenticAMD", "NVL", "NVL"),
        (8, "GenuineIntel", "sys", "PXB"),
    ],
)
def test_p2p_limit_of_nccl(gpus: int, vendor: str | None, level: str | None, limit: str):
    assert codes.p2p_limit(gpus, vendor, level)[0] == limit


@pytest.mark.parametrize(
    ("code", "limit", "within"), [("PIX", "PXB", True), ("NODE", "PXB", False), ("SOC", "SYS", True)]
)
def test_paths_within_the_limit(code: str, limit: str, within: bool):
    assert codes.allowed(code, limit) is within
