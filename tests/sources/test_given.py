"""Inputs that a user names, including inputs that never end or never begin."""

import fcntl
import os
import subprocess
import sys
import termios
import threading

import pytest

from ddp_doctor.sources.given import CannotRead, read_given
from tests.waiting import LIMIT_S, wait_until


def test_a_file_is_read_whole(tmp_path):
    (tmp_path / "x").write_bytes(b"GPU0\xff\n" * 50_000)
    assert read_given(str(tmp_path / "x")) == b"GPU0\xff\n" * 50_000


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/nothing/here", "cannot read '/nothing/here': No such file"),
        ("/proc", "cannot read '/proc': Is a directory"),
        ("", "cannot read '': No such file"),
        ("a\0b", "null"),
    ],
)
def test_unreadable_input_is_one_sentence(path, why):
    with pytest.raises(CannotRead, match=why):
        read_given(path)


def test_an_endless_file_is_refused_and_not_read_on():
    with pytest.raises(CannotRead, match="'/dev/zero': it is larger than 1 MiB"):
        read_given("/dev/zero", most_bytes=1024 * 1024)


def test_pipe_without_a_writer_times_out(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CannotRead, match=r"pipe': no data for 0\.2 s"):
        read_given(str(tmp_path / "pipe"), silence_s=0.2)


def test_pipe_whose_writer_stops_writing_times_out(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(writer, b"GPU0")
    try:
        with pytest.raises(CannotRead, match="no data"):
            read_given(str(tmp_path / "pipe"), silence_s=0.2)
    finally:
        os.close(writer)


def test_a_pipe_whose_writer_comes_late_is_read_to_its_end(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write_late():
        with pipe.open("w") as file:  # waits for the reader
            file.write("GPU0\n")
            file.flush()
            wait_until(lambda: fcntl.ioctl(file, termios.FIONREAD, bytes(4)) == bytes(4), "the reader has it")
            file.write("GPU1\n")

    writer = threading.Thread(target=write_late)
    writer.start()
    try:
        assert read_given(str(pipe), silence_s=LIMIT_S) == b"GPU0\nGPU1\n"
    finally:
        writer.join()


def test_stdin_is_read_for_a_dash():
    command = "from ddp_doctor.sources.given import read_given; print(read_given('-'))"
    done = subprocess.run(
        [sys.executable, "-c", command], input=b"GPU0", capture_output=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout == b"b'GPU0'\n"
