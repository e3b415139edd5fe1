"""The table of variables compared with real libraries: the names they know, and their defaults.

NCCL keeps each name as a text ("NCCL_IB_TIMEOUT"), and for each number a function (ncclParamIbTimeout) that reads it
and needs no GPU. With a different number in every variable, each function shows which one it reads; without variables,
it shows the default. A wheel is 150 to 300 MB, so this test is part of the lab.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_doctor.knowledge.versions import release
from ddp_doctor.settings.conditions import strtoll
from ddp_doctor.settings.releases import default_at, status_at
from ddp_doctor.settings.table import variables
from ddp_doctor.settings.values import is_ignored, misread
from tests import elf
from tests.nccl_wheels import RELEASES, libnccl
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

#: Texts that look like a variable, and what they are.
NO_VARIABLES = {
    "NCCL_COMM_PROPERTIES_INITIALIZER": "macro that programs must use, named in a warning",
    "NCCL_CONFIG_INITIALIZER": "macro that programs must use, named in a warning",
    "NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER": "macro that programs must use, named in a warning",
    "NCCL_ENCRYPTION_CONFIG_INITIALIZER": "macro that programs must use, named in a warning",
    "NCCL_SIM_INFO_INITIALIZER": "macro that programs must use, named in a warning",
    "NCCL_GIN_CONNECTION_FULL": "value of an enumeration, named in a warning",
    "NCCL_GIN_CONNECTION_RAIL": "value of an enumeration, named in a warning",
    "NCCL_IB_MAX_DEVS_PER_NIC": "constant, named in a warning",
    "NCCL_IB_RECV_WR_ID_DUMMY": "constant, named in a warning",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_MSG_ID": "constant, named in a warning",
}

#: Variables that a release reads only if it was built differently from the wheels.
NOT_IN_WHEELS = {"NCCL_PROXY_PROFILE": "built with ENABLE_PROFILER alone, src/misc/profiler.cc"}

#: Values in the library of defaults that the table describes in words.
IN_WORDS = {"ncclConfig": -(2**31), "no limit": 2**63 - 1}

#: Calls functions of a library by their addresses, and prints what they return.
ASK = """
import ctypes, json, os, sys
ctypes.CDLL(sys.argv[1])
with open("/proc/self/maps") as maps:
    start = next(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(sys.argv[1]))
returned = ctypes.CFUNCTYPE(ctypes.c_int64)
told = {name: returned(start + address)() for name, address in json.load(sys.stdin).items()}
print("told" + json.dumps(told), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module", params=RELEASES)
def nccl(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A release, and its library out of NVIDIA's wheel."""
    return request.param, libnccl(request.param)


def read_at(nccl_release: str) -> set[str]:
    """The variables of NCCL that the table says this release reads."""
    return {
        name
        for name, variable in variables().items()
        if variable.owner == "nccl" and status_at(variable, release(nccl_release)) == "read"
    }


def told(library: Path, functions: dict[str, int], **env: str) -> dict[str, int]:
    """Return the results, in a fresh process, of the functions that read one number each."""
    done = subprocess.run(
        (sys.executable, "-c", ASK, str(library)),
        input=json.dumps(functions),
        env={"HOME": "/nonexistent", **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    answer: dict[str, int] = json.loads(done.stdout.rpartition("told")[2])
    return answer


def readers(library: Path) -> tuple[dict[str, int], dict[str, str]]:
    """The functions that read one number each, and the variable that each of them reads."""
    mangled = re.compile(r"_Z\d+ncclParam\w+?v")
    functions = {name: address for name, address in elf.functions(library) if mangled.fullmatch(name)}
    names = sorted(elf.names(elf.texts(library), "NCCL_") | set(variables()))
    marks = {name: 1_000_000 + number for number, name in enumerate(names)}
    marked = told(library, functions, **{name: str(mark) for name, mark in marks.items()})
    of = {mark: name for name, mark in marks.items()}
    return functions, {function: of[mark] for function, mark in marked.items()}


def defaults(library: Path) -> dict[str, int]:
    """The default of each number that the library reads, by variable."""
    functions, reads = readers(library)
    unset = told(library, functions)
    return {name: unset[function] for function, name in reads.items()}


#: Values that NCCL reads differently from how they look, or that seem to be such values.
ODD = ("7", "-1", "true", "off", "4MB", "1.5", "0x10", "010", "1e3", " 7", "7 ", "'1'", "nan", "9" * 20, str(-(2**63)))


def foretold(name: str, value: str, default: int, nccl_release: str) -> int:
    """The number that NCCL reads, by the doctor's words of the value."""
    if is_ignored(name, value, release(nccl_release)):
        return default
    wrong = misread(name, value, release(nccl_release))
    if wrong is None:
        return strtoll(value)[0] or 0
    number = re.match(r"is read as (-?\d+)", wrong.becomes)
    if number:
        return int(number[1])
    return default if "ignored" in wrong.becomes else strtoll(value)[0] or 0


def test_table_and_real_library_know_the_same_names(nccl):
    nccl_release, library = nccl
    texts = elf.texts(library)

    known, said = elf.names(texts, "NCCL_"), read_at(nccl_release)

    assert known - said - set(NO_VARIABLES) == set()
    assert {name for name in said if f"{name}\0".encode() not in texts} <= set(NOT_IN_WHEELS)
    assert len(known & said) > 100


def test_defaults_of_a_real_library_equal_the_table(nccl):
    nccl_release, library = nccl

    real = defaults(library)

    table = {name: default_at(variables()[name], release(nccl_release)) or "" for name in real}
    said = {name: str(IN_WORDS.get(default, default)) for name, default in table.items()}
    assert said == {name: str(default) for name, default in real.items()}
    assert len(real) > 90


def test_real_library_reads_odd_numbers_as_ddp_doctor_predicts(nccl):
    nccl_release, library = nccl
    functions, reads = readers(library)
    unset = told(library, functions)
    numbers = {function: name for function, name in reads.items() if variables()[name].type != "text"}

    otherwise = []
    for value in ODD:
        real = told(library, functions, **dict.fromkeys(reads.values(), value))
        otherwise += [
            (name, value, real[function])
            for function, name in numbers.items()
            if real[function] != foretold(name, value, unset[function], nccl_release)
        ]

    assert otherwise == []
    assert len(numbers) > 90
