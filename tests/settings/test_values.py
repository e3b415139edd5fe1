"""Compare how values are read with the C library and with the installed torch."""

from __future__ import annotations

import ctypes
import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.settings.conditions import strtoll
from ddp_doctor.settings.table import variables
from ddp_doctor.settings.values import misread
from tests.lab.processes import to_its_end

#: Values that torch 2.13 accepts and rejects, tested with the installed torch. torch reads the first variable only
#: until it has accepted a value.
TORCH_VALUES = {
    "TORCH_GLOO_LAZY_INIT": ["on", "", "1 ", "2", "enable"],
    "TORCH_DISTRIBUTED_DEBUG": ["1", "", "debug", "detail", "INFO", "OFF"],
    "TORCH_DIST_INIT_BARRIER": ["true", "", "1.0", " 1", "0"],
    "GLOO_SOCKET_IFNAME": ["^lo", "=lo", " lo", "lo*", "lo", ""],
}

ASK_TORCH = """
import json, os, sys
import torch.distributed as dist
accepted = {}
for name, values in json.load(sys.stdin).items():
    for value in values:
        os.environ[name] = value
        try:
            dist.set_debug_level_from_env()
            dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        except (RuntimeError, ValueError):
            accepted.setdefault(name, []).append(False)
        else:
            accepted.setdefault(name, []).append(True)
        if dist.is_initialized():
            dist.destroy_process_group()
    del os.environ[name]
print(json.dumps(accepted))
"""


@pytest.mark.ranks
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the loopback interface is called lo on Linux")
def test_torch_and_gloo_reject_the_values_that_the_table_rejects():
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH_", "GLOO_"))}
    argv = (sys.executable, "-W", "ignore", "-c", ASK_TORCH)
    answer = to_its_end(argv, env, given=json.dumps(TORCH_VALUES), check=True)
    expected = {
        name: [(found := misread(name, value)) is None or found.fate == "misread" for value in values]
        for name, values in TORCH_VALUES.items()
    }
    assert json.loads(answer.stdout.splitlines()[-1]) == expected


LIBC = ctypes.CDLL(None)
LIBC.strtoll.restype = ctypes.c_longlong
LIBC.strtoll.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int)


def c_strtoll(text: str) -> tuple[int, int]:
    """Return the number and the count of characters that the C library reads."""
    buffer = ctypes.create_string_buffer(text.encode())
    end = ctypes.c_char_p()
    number = LIBC.strtoll(ctypes.cast(buffer, ctypes.c_char_p), ctypes.byref(end), 0)
    return number, len(text.encode()) - len(end.value or b"")


@given(st.from_regex(r"[ \t]*[+-]?(0[xX]?)?[0-9a-fA-F]{0,8}[a-zA-Z. ]{0,4}", fullmatch=True))
def test_strtoll_reads_as_the_c_library_does(text):
    number, rest = strtoll(text)
    expected, read = c_strtoll(text)
    assert (number or 0) == expected
    assert number is None or len(text) - len(rest) == read


def test_misread_values():
    cases = [
        ("NCCL_IB_DISABLE", "true", "is read as 0, so nothing is disabled"),
        ("NCCL_DMABUF_ENABLE", "true", "is read as 0, so the feature is off"),
        ("NCCL_IB_DISABLE", '"1"', "is read as 0, so nothing is disabled"),
        ("NCCL_BUFFSIZE", "4M", "is read as 4"),
        ("NCCL_IB_TC", "0106", "is read as 70"),
        ("NCCL_IB_GID_INDEX", "9" * 20, "is too large and ignored"),
        ("NCCL_P2P_DISABLE", "2", "does not disable P2P"),
        ("NCCL_P2P_LEVEL", "sys", "is ignored"),
        ("NCCL_NET_GDR_LEVEL", "PHB ", "is ignored"),
        ("NCCL_DEBUG", "DEBUG", "is not a log level, so NCCL logs nothing"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NETWORK", "names an unknown subsystem: 'NETWORK'"),
        ("NCCL_DEBUG_FILE", "/l/n.%h.%r.log", "keeps %r in the file name"),
        ("NCCL_DEBUG_FILE", "~/n.%p.log", "keeps its ~"),
        ("NCCL_SOCKET_FAMILY", "ipv4", "is ignored"),
        ("NCCL_SOCKET_IFNAME", "e", "is ignored"),
        ("NCCL_SOCKET_IFNAME", "=^eth0", "matches no device"),
        ("NCCL_SOCKET_IFNAME", "^docker0,^lo", "matches unintended devices"),
        ("NCCL_SOCKET_IFNAME", "eth*", "matches no device"),
        ("NCCL_SOCKET_IFNAME", '"eth0"', "includes the surrounding characters"),
        ("NCCL_IB_HCA", "mlx5_0, mlx5_1", "matches unintended devices"),  # only mlx5_0, according to NCCL
        ("NCCL_IB_HCA", "mlx5_0 mlx5_1", "matches no device"),
        ("TORCH_FR_BUFFER_SIZE", "2k", "is read as 2"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "10min", "is read as 10"),
        ("USE_LIBUV", "true", "counts as off"),
        ("TORCH_DIST_USE_NCCL2", "false", "counts as unset"),
        ("TORCH_DIST_USE_NCCL2", "00", "counts as unset"),
        ("TORCH_DIST_NAN_CHECK", "true", "counts as off"),
        ("OMP_NUM_THREADS", "", "is ignored"),
        ("OMP_NUM_THREADS", "0", "is ignored"),
    ]
    found = [(name, value, misread(name, value)) for name, value, _ in cases]
    assert [(name, value, told and told.becomes) for name, value, told in found] == cases
    assert {told and told.fate for _, _, told in found} == {"misread"}


@pytest.mark.parametrize(
    ("name", "value", "fate"),
    [
        ("TORCH_NCCL_BLOCKING_WAIT", "on", "refused"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "true", "refused"),
        ("LOGLEVEL", "debug", "refused"),
        ("PET_STANDALONE", "true", "refused"),
        ("PET_NNODES", "", "refused"),
        ("PET_NPROC_PER_NODE", "all", "refused"),
        ("TORCH_FR_BUFFER_SIZE", "many", "hangs"),
        ("TORCH_FR_CPP_STACK", "on", "hangs"),
    ],
)
def test_values_that_stop_the_job(name, value, fate):
    found = misread(name, value)
    assert found is not None
    assert found.fate == fate


def test_values_that_are_read_as_written():
    cases = {
        "NCCL_IB_DISABLE": ["1", "false", "1 ", "1 # no InfiniBand here"],
        "NCCL_BUFFSIZE": ["0x400000"],
        "NCCL_IB_TIMEOUT": ["22"],
        "NCCL_CROSS_NIC": ["2"],
        "NCCL_CUMEM_ENABLE": ["-2"],
        "NCCL_P2P_LEVEL": ["NVL", "4"],
        "NCCL_DEBUG": ["info"],
        "NCCL_DEBUG_SUBSYS": ["^ALL"],
        "NCCL_DEBUG_FILE": ["/logs/nccl.%h.%p.log", "/dev/stderr"],
        "NCCL_ALGO": ["ring,collnetdirect;allreduce:tree", "^NVLS"],
        "NCCL_PROTO": ["^LL128"],
        "NCCL_SOCKET_IFNAME": ["eth0", "^docker0,lo", "=eth0:1234"],
        "NCCL_IB_HCA": ["=mlx5_0:1,mlx5_1:1"],
        "NCCL_NET": ["AWS Libfabric"],
        "GLOO_SOCKET_IFNAME": ["eth0,eth1"],
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": ["1"],
        "TORCH_NCCL_BLOCKING_WAIT": ["False"],
        "TORCH_DISTRIBUTED_DEBUG": ["DETAIL"],
        "PET_NNODES": ["1:4"],
        "PET_NPROC_PER_NODE": ["gpu"],
        "OMP_NUM_THREADS": ["4,2"],
        "LOGLEVEL": ["INFO"],
        "TORCH_DIST_USE_NCCL2": ["0", "1", ""],
        "CUDA_VISIBLE_DEVICES": [""],
        "PATH": ["/usr/bin"],
    }
    read = [(name, value) for name, values in cases.items() for value in values]
    assert [case for case in read if misread(*case) is not None] == []


@pytest.mark.parametrize(
    ("name", "value", "older", "since_2_32"),
    [
        ("NCCL_NVLS_ENABLE", "off", None, "is ignored"),  # 2 is the default: it stays on
        ("NCCL_DMABUF_ENABLE", "true", "is read as 0, so the feature is off", None),
        ("NCCL_IB_DISABLE", "true", "is read as 0, so nothing is disabled", "is ignored"),
        ("NCCL_IB_DISABLE", "off", None, None),
        ("NCCL_BUFFSIZE", "4MB", "is read as 4", "is read as 4"),
        ("NCCL_SOCKET_NTHREADS", "many", "is read as 0", "is ignored"),
    ],
)
def test_a_word_for_a_number_is_zero_up_to_nccl_2_31_and_ignored_since_2_32(name, value, older, since_2_32):
    def said(nccl: tuple[int, ...]) -> str | None:
        found = misread(name, value, nccl)
        return None if found is None else found.becomes

    assert said(()) == said((2, 31, 2)) == older
    assert said((2, 32, 3)) == since_2_32


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("NCCL_IB_DISABLE", "true", "1"),
        ("NCCL_BUFFSIZE", "4M", "4194304"),
        ("NCCL_P2P_LEVEL", "sys", "SYS"),
        ("NCCL_DEBUG_FILE", "/l/%r.log", "/l/%p.log"),
        ("NCCL_SOCKET_IFNAME", "^docker0,^lo", "^docker0,lo"),
        ("NCCL_SOCKET_IFNAME", "'eth0'", "eth0"),
        ("NCCL_SOCKET_IFNAME", "\u201ceth0\u201d", "eth0"),
        ("NCCL_SOCKET_IFNAME", "eth0, eth1", "eth0,eth1"),
        ("NCCL_SOCKET_IFNAME", "eth0,!docker0", None),
        ("NCCL_IB_HCA", "=mlx5_0 mlx5_1", "=mlx5_0,mlx5_1"),
        ("GLOO_SOCKET_IFNAME", "eth0 eth1", "eth0,eth1"),
        ("GLOO_SOCKET_IFNAME", "=eth0", "eth0"),
        ("TORCH_GLOO_LAZY_INIT", "1\r", "1"),
        ("LOGLEVEL", "debug", "DEBUG"),
        ("TORCH_DIST_USE_NCCL2", "no", "0"),
        ("TORCH_DIST_USE_NCCL2", "00", None),
        ("TORCH_DIST_NAN_CHECK", "on", "1"),
    ],
)
def test_the_intended_value_is_offered_if_it_is_clear(name, value, instead):
    found = misread(name, value)
    assert found is not None
    assert found.instead == instead


@given(st.sampled_from(sorted(variables())), st.text(alphabet=st.characters(codec="utf-8"), max_size=30))
def test_any_value_is_evaluated_and_the_offered_value_is_valid(name, value):
    found = misread(name, value)
    if found is not None and found.instead is not None and found.fate != "misread":
        assert misread(name, found.instead) is None


def test_the_default_of_every_variable_is_valid():
    defaults = {
        name: variable.default
        for name, variable in variables().items()
        if variable.default and " " not in variable.default
        if not variable.default.startswith(("~", "ncclConfig"))
    }

    assert {name: default for name, default in defaults.items() if misread(name, default) is not None} == {}
