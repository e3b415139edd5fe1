"""The table of variables: complete, consistent, quick, and in step with the torch that is installed."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.versions import release
from ddp_doctor.settings.names import is_recorded, is_unknown, nearest
from ddp_doctor.settings.releases import Installed, default_at, is_gone, is_of_another_backend, status_at
from ddp_doctor.settings.table import DATA, foreign, never_read, variables
from tests import elf


def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def read_by_this_torch() -> set[str]:
    return {
        name
        for name, variable in variables().items()
        if variable.owner == "nccl" or status_at(variable, release(version("torch"))) == "read"
    }


def test_every_row_names_its_source_and_only_known_replacements():
    table = variables()
    assert all(variable.source for variable in table.values())
    assert {v.replaced_by for v in table.values() if v.replaced_by} <= set(table)
    assert {n.instead for n in never_read().values() if n.instead} <= set(table)
    assert not set(table) & set(never_read())


def test_every_variable_has_a_sentence_for_its_meaning_and_for_values_of_concern():
    for name, variable in variables().items():
        for text in (variable.meaning, *(effect.why for effect in variable.effects)):
            assert re.fullmatch(r"[A-Za-z0-9].{8,180}[.]", text), name
        assert len(variable.meaning) < 130, name


def test_every_effect_has_its_source_and_something_to_compare_with():
    for name, variable in variables().items():
        for effect in variable.effects:
            assert effect.source, name
            assert len(effect.when) == 1, name
            for _, condition in effect.when:
                assert bool(condition.operands) == (condition.test != "any"), name
                assert condition.test not in ("below", "above") or int(condition.operands[0]) >= 0, name


def test_the_newest_default_ends_the_history_and_the_first_release_begins_it():
    for name, variable in variables().items():
        if variable.history:
            releases = [release(since) for since, _ in variable.history]
            assert releases == sorted(releases), name
            assert variable.history[0][0] == variable.first, name
            assert variable.history[-1][1] == variable.default, name


def test_no_variable_is_listed_twice():
    texts = [path.read_text(encoding="utf-8") for path in DATA.rglob("*.ini") if path.stem != "foreign"]
    names = [name for text in texts for name in re.findall(r"^\[(\w+)\]$", text, re.MULTILINE)]
    assert len(names) == len(set(names)) == len(variables()) + len(never_read())


def test_only_removed_variables_have_a_last_release():
    for variable in variables().values():
        assert (variable.last is not None) == (variable.status == "removed"), variable.name


def test_reading_the_table_takes_little_longer_than_finding_its_words():
    """The limit is 20 ms if finding the words takes 2.5 ms, as when this test was written; reading then took 10 ms."""
    texts = [path.read_text(encoding="utf-8") for path in DATA.rglob("*.ini")]

    def read() -> None:
        for cached in (variables, never_read, foreign):
            cached.cache_clear()
        variables(), never_read(), is_unknown("NCCL_NOBODY")

    def find_words() -> None:
        for text in texts:
            re.findall(r"[A-Za-z0-9_.-]+", text)

    times: dict[Callable[[], None], list[float]] = {read: [], find_words: []}
    for _ in range(10):  # alternately, so a busy machine affects both equally
        for work, took_s in times.items():
            started = time.process_time()
            work()
            took_s.append(time.process_time() - started)
    assert min(times[read]) < 8 * min(times[find_words])


@pytest.mark.parametrize("header", ["ProcessGroupNCCL.hpp", "ProcessGroupGloo.hpp", "FlightRecorder.hpp"])
def test_every_variable_of_torchs_headers_is_in_the_table(header):
    path = torch_folder() / "include/torch/csrc/distributed/c10d" / header
    if not path.exists():
        pytest.skip("this torch brings no C++ headers")
    named = set(re.findall(r'"((?:TORCH|NCCL|GLOO)_[A-Z0-9_]+)"', path.read_text(encoding="utf-8")))
    assert named <= set(variables())


def test_every_option_of_torchrun_has_its_variable_in_the_table():
    source = (torch_folder() / "distributed/run.py").read_text(encoding="utf-8")
    options = re.findall(r"add_argument\(\s*((?:\"-[\w-]+\",\s*)+)[^)]*?action=(?:check_)?env", source)
    longest = {max(re.findall(r'"--([\w-]+)"', option), key=len) for option in options}
    assert len(longest) > 20
    from_options = {f"PET_{option.replace('-', '_').upper()}" for option in longest}
    assert from_options == {name for name in read_by_this_torch() if name.startswith("PET_")}


#: Variables that torch reads but that a CPU build does not contain.
NOT_IN_A_CPU_BUILD = {
    "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE": "compiled where gloo is built with OpenSSL",
    "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_PATH": "compiled where gloo is built with OpenSSL",
    "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT": "compiled where gloo is built with OpenSSL",
    "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY": "compiled where gloo is built with OpenSSL",
    "TORCH_NCCL2_RECONFIGURE_SHRINK_GROW": "in libtorch_cuda",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "in libtorch_cuda",
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "in libtorch_cuda",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "in libtorch_cuda",
}
TORCHS_OWN = ("TORCH_NCCL_", "TORCH_FR_", "TORCH_GLOO_", "TORCH_DIST", "TORCHELASTIC_", "GLOO_")


@pytest.fixture(scope="module")
def in_torchs_libraries() -> bytes:
    folder = torch_folder() / "lib"
    libraries = [folder / f"{name}.so" for name in ("libtorch_cpu", "libtorch_python", "libc10")]
    if not all(library.exists() for library in libraries):
        pytest.skip("this torch is not built of libtorch_cpu.so, libtorch_python.so and libc10.so")
    return b"".join(elf.texts(library) for library in libraries)


def test_every_variable_of_torchs_libraries_is_in_the_table(in_torchs_libraries):
    named = {name for prefix in TORCHS_OWN for name in elf.names(in_torchs_libraries, prefix)}
    assert {"TORCH_FR_BUFFER_SIZE", "GLOO_SOCKET_IFNAME"} <= named
    assert named <= set(variables())


def test_every_variable_that_torch_is_said_to_read_is_in_it(in_torchs_libraries):
    written = set[str]()
    for folder in ("distributed", "compiler", "nn/parallel", "include/torch/csrc/distributed/c10d"):
        for path in (torch_folder() / folder).rglob("*"):
            if path.suffix in (".py", ".h", ".hpp"):
                written |= set(re.findall(r"[A-Z][A-Z0-9_]{3,}", path.read_text(encoding="utf-8")))
    said = {
        name
        for name, variable in variables().items()
        if variable.owner in ("torch", "gloo", "torchrun", "launcher") and not name.startswith("PET_")
    }
    said &= read_by_this_torch()
    absent = {name for name in said - written if f"{name}\0".encode() not in in_torchs_libraries}
    assert absent == NOT_IN_A_CPU_BUILD.keys() & said


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_SOCKET_IFNAM", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKET_IF_NAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_DEUBG", "NCCL_DEBUG"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("NCCL_DISABLE_IB", "NCCL_IB_DISABLE"),
        ("NCCL_IB_DISABLED", "NCCL_IB_DISABLE"),
        ("NCCL_NSOCKS_PER_THREAD", "NCCL_NSOCKS_PERTHREAD"),
        ("NCCL_IB_GID", "NCCL_IB_GID_INDEX"),
        ("NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
        ("TORCH_NAN_CHECK", "TORCH_NCCL_NAN_CHECK"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
        ("GLOO_SOCKET_IFNAMES", "GLOO_SOCKET_IFNAME"),
        ("TORCHELASTIC_RUNID", "TORCHELASTIC_RUN_ID"),
        ("PET_NNODE", "PET_NNODES"),
    ],
)
def test_misspelled_names_find_their_variable(name, meant):
    assert is_unknown(name)
    assert nearest(name) == meant


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_IB_TX",  # not NCCL_IB_TC
        "NCCL_NET_DISABLE",
        "NCCL_LL256_BUFFSIZE",  # not NCCL_LL128_BUFFSIZE
        "NCCL_GRAPH_DUMP",  # two variables start with this
        "NCCL_CTRAN_ENABLE",
        "NCCL_FROB",
        "NCCL_",
    ],
)
def test_unknown_names_that_misspell_no_variable_find_none(name):
    assert is_unknown(name)
    assert nearest(name) is None


#: NCCL_VERSION is in every image of nvidia/cuda.
FOREIGN = """
    NCCL_VERSION NCCL_HOME NCCL_LIBRARY_DIR NCCL_FASTRAK_IFNAME NCCL_GPUDIRECTTCPX_CTRL_DEV NCCL_SHARP_DISABLE
    NCCL_IBEXT_DISABLE NCCL_INSPECTOR_ENABLE NCCL_EP_TIMEOUT_MS OFI_NCCL_PROTOCOL RCCL_MSCCL_ENABLE TORCH_CUDA_ARCH_LIST
    TORCH_HOME TORCH_EXTENSIONS_DIR TORCH_COMPILE_DEBUG TORCH_LOGS TORCHINDUCTOR_CACHE_DIR
"""


@pytest.mark.parametrize("name", FOREIGN.split())
def test_names_of_plug_ins_images_and_compilers_are_not_reported(name):
    assert not is_unknown(name)


def test_no_known_variable_is_unknown_or_hidden_behind_a_plug_ins_prefix():
    assert not [name for name in variables() if is_unknown(name)]
    assert not [name for name in never_read() if is_unknown(name)]


def test_only_names_that_matter_are_recorded():
    assert is_recorded("NCCL_ANYTHING")
    assert is_recorded("RANK")
    assert not is_recorded("AWS_SECRET_ACCESS_KEY")
    assert not is_recorded("PATH")
    assert not is_recorded("NCCL_A;rm")


def test_a_variable_is_gone_if_no_nccl_of_a_supported_torch_reads_it():
    assert is_gone(variables()["NCCL_TREE_THRESHOLD"])
    assert not is_gone(variables()["NCCL_WORK_FIFO_DEPTH"])  # torch 2.6 includes 2.21.5, which reads it
    assert not is_gone(variables()["NCCL_DEBUG"])


@pytest.mark.parametrize(
    ("name", "release", "status", "default"),
    [
        ("NCCL_NVLS_ENABLE", (2, 16, 5), "not yet", None),
        ("NCCL_NVLS_ENABLE", (2, 17, 1), "read", "1"),
        ("NCCL_NVLS_ENABLE", (2, 18, 1), "read", "2"),
        ("NCCL_NVLS_ENABLE", (2, 99), "read", "2"),
        ("NCCL_WORK_FIFO_DEPTH", (2, 21, 5), "read", "65536"),
        ("NCCL_WORK_FIFO_DEPTH", (2, 22, 3), "renamed", None),
        ("NCCL_SHM_MEMCPY_MODE", (2, 30, 7), "no longer", None),
        ("NCCL_NET_GDR_MLOPART", (2, 30, 7), "read", "0"),  # the NCCL of torch 2.14 and 2.15
        ("NCCL_NET_GDR_MLOPART", (2, 32, 3), "no longer", None),
        ("NCCL_DEBUG", (2, 29, 7), "read", None),
        ("TORCH_DIST_USE_NCCL2", (2, 13), "not yet", None),
        ("TORCH_DIST_USE_NCCL2", (2, 14, 1), "read", "0"),
        ("TORCH_DIST_USE_NCCL2", (2, 15, 0), "read", "1"),
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", (2, 14, 1), "read", None),
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", (2, 15, 0), "no longer", None),
        ("TORCH_DISTRIBUTED_PIPELINE_PER_DIRECTION_P2P", (2, 15, 0), "renamed", None),
        ("RANK", (2, 29, 7), "read", "set by the launcher"),
    ],
)
def test_status_and_default_match_the_release(name, release, status, default):
    variable = variables()[name]
    assert status_at(variable, release) == status
    assert default_at(variable, release) == default


@pytest.mark.parametrize(
    ("name", "installed", "reads"),
    [
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", Installed(torch=(2, 15), backend="nccl2"), False),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", Installed(torch=(2, 15), backend="nccl-legacy"), True),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", Installed(torch=(2, 13), backend="nccl"), True),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", Installed(), True),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", Installed(backend="some-plug-in"), True),
        ("TORCH_NCCL_BLOCKING_WAIT", Installed(torch=(2, 15), backend="nccl2"), True),
        ("TORCH_FR_DUMP_ON_TIMEOUT", Installed(torch=(2, 15), backend="nccl2"), True),
        ("TORCH_FR_DUMP_ON_TIMEOUT", Installed(torch=(2, 15), backend="nccl-legacy"), False),
        ("TORCH_FR_DUMP_ON_TIMEOUT", Installed(torch=(2, 14, 1), backend="nccl2"), False),
        ("TORCH_FR_DUMP_ON_TIMEOUT", Installed(), False),
        ("NCCL_NET_GDR_MLOPART", Installed(nccl=(2, 30, 7), torch=(2, 15)), True),
        ("NCCL_NET_GDR_MLOPART", Installed(nccl=(2, 29, 7), torch=(2, 13)), False),
    ],
)
def test_the_variables_read_depend_on_the_release_and_the_class_behind_nccl(name, installed, reads):
    assert installed.reads(name) is reads


def test_variables_of_one_class_belong_to_torch_and_are_excluded_for_the_other_class():
    of_one = {name: variable for name, variable in variables().items() if variable.backend}
    assert {variable.owner for variable in of_one.values()} == {"torch"}
    assert {variable.backend for variable in of_one.values()} == {"nccl2", "nccl-legacy"}
    for variable in of_one.values():
        assert not is_of_another_backend(variable, None)
        assert is_of_another_backend(variable, "nccl2") != is_of_another_backend(variable, "nccl")
        assert variable.what_it_does.endswith(f"{variable.backend}.")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_any_name_can_be_asked_about(text):
    for name in (text, f"NCCL_{text}", f"TORCH_NCCL_{text}"):
        is_recorded(name), is_unknown(name)
        assert nearest(name) in {None, *variables()}
