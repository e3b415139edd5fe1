"""nccl.conf line by line, as libnccl 2.20.5 to 2.32.3 reads it."""

from ddp_doctor.facts.node.nccl import ConfFile, ConfLine
from ddp_doctor.probing.nccl_interface import conf_files
from ddp_doctor.settings.nccl_conf import LONGEST, MOST_LINES, conf_lines, read_by, set_by_files
from tests.fakes import FakeContext


def test_names_values_and_numbers_are_read_as_nccl_reads_them():
    text = "# NCCL_DEBUG=INFO\n\nNCCL_SOCKET_IFNAME=eth0\nnonsense\n=x\nNCCL_IB_HCA==mlx5_0\n export NCCL_ALGO=Tree\n"

    assert conf_lines(text) == (
        ConfLine(number=3, name="NCCL_SOCKET_IFNAME", value="eth0"),
        ConfLine(number=4),
        ConfLine(number=5),
        ConfLine(number=6, name="NCCL_IB_HCA", value="=mlx5_0"),
        ConfLine(number=7, name=" export NCCL_ALGO", value="Tree"),
    )


def test_settings_of_other_libraries_and_secrets_are_withheld():
    lines = conf_lines("AWS_SECRET_ACCESS_KEY=x\nNCCL_TOKEN=abc\nmy password is=hunter2\n")

    assert [(line.name, line.value) for line in lines] == [
        ("AWS_SECRET_ACCESS_KEY", None),
        ("NCCL_TOKEN", None),
        ("", None),
    ]


def test_long_values_are_truncated_like_in_nccl_and_long_files_are_partly_read():
    (line,) = conf_lines("NCCL_IB_HCA=" + "m" * 5000)

    assert line.value == "m" * LONGEST
    assert len(conf_lines("NCCL_DEBUG=INFO\n" * (MOST_LINES + 5))) == MOST_LINES


def test_the_first_of_two_equal_names_counts_over_all_files():
    users = ConfFile(path="/u", reason="user", lines=conf_lines("NCCL_ALGO=Ring\nNCCL_ALGO=Tree\n"))
    system = ConfFile(path="/s", reason="system", lines=conf_lines("NCCL_ALGO=NVLS\nNCCL_DEBUG=WARN\n"))

    assert set_by_files((users, system)) == {"NCCL_ALGO": ("Ring", "/u:1"), "NCCL_DEBUG": ("WARN", "/s:2")}


def test_a_file_that_cannot_be_read_has_a_reason():
    files = {"/etc/nccl.conf": PermissionError(13, "Permission denied")}
    env = {"HOME": "/h", "NCCL_CONF_FILE": "site.conf"}

    assert [file.problem for file in conf_files(FakeContext(env=env, files=files))] == [
        "is relative to the directory in which the job starts",
        "cannot be read: Permission denied",
    ]


def test_without_a_user_in_the_status_the_home_directory_of_the_environment_is_used():
    files = {"/proc/self/status": "Uid:\t\n", "/h/.nccl.conf": "NCCL_DEBUG=INFO\n"}

    assert [file.path for file in conf_files(FakeContext(env={"HOME": "/h"}, files=files))] == ["/h/.nccl.conf"]


def test_a_release_without_named_files_reads_the_users_own_file():
    files = {"/site.conf": "NCCL_ALGO=Ring\n", "/h/.nccl.conf": "NCCL_ALGO=Tree\n"}
    env = {"HOME": "/h", "NCCL_CONF_FILE": "/site.conf"}

    found = conf_files(FakeContext(env=env, files=files))

    assert [file.path for file in read_by(found, (2, 21, 5))] == ["/h/.nccl.conf"]
    assert [file.path for file in read_by(found)] == ["/site.conf"]
