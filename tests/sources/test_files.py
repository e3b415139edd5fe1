import errno
import os

import pytest

from ddp_doctor.sources.machine import READ_LIMIT_BYTES, Files


def test_root_applies_to_reads_lists_and_links(tmp_path):
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth1").symlink_to("../../devices/eth1")
    (tmp_path / "sys/class/net/eth0").write_text("up\n")
    files = Files(str(tmp_path))
    assert files.read("/sys/class/net/eth0") == "up\n"
    assert files.listdir("/sys/class/net") == ["eth0", "eth1"]
    assert files.readlink("/sys/class/net/eth1") == "../../devices/eth1"
    assert files.disk("/sys").total_bytes == Files().disk(str(tmp_path)).total_bytes
    assert files.disk("/sys").device == tmp_path.stat().st_dev


def test_missing_file_raises_oserror(tmp_path):
    files = Files(str(tmp_path))
    for look in (files.read, files.listdir, files.readlink, files.disk):
        with pytest.raises(FileNotFoundError):
            look("/nothing/here")


def test_a_folder_cannot_be_read(tmp_path):
    with pytest.raises(IsADirectoryError):
        Files(str(tmp_path)).read("/")


def test_bytes_that_are_not_utf8_are_replaced(tmp_path):
    (tmp_path / "x").write_bytes(b"a\xffb")
    assert Files(str(tmp_path)).read("/x") == "a\ufffdb"


def test_an_endless_file_is_refused_instead_of_cut():
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        Files().read("/dev/zero")


def test_a_file_of_exactly_the_limit_is_read(tmp_path):
    (tmp_path / "x").write_bytes(b"a" * READ_LIMIT_BYTES)
    assert len(Files(str(tmp_path)).read("/x")) == READ_LIMIT_BYTES


def test_a_fifo_without_a_writer_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert Files(str(tmp_path)).read("/pipe") == ""


def test_proc_and_sys_of_this_machine_can_be_read():
    files = Files()
    assert "MemTotal" in files.read("/proc/meminfo")
    assert "self" in files.listdir("/proc")
    assert files.readlink("/proc/self") == str(os.getpid())
