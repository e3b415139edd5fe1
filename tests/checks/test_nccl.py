"""The nccl check: real files, real plug-ins that the real linker loads or not, and the rules."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks.node.nccl import CHECK, probe
from ddp_doctor.facts.node.nccl import ConfFile, NcclFact, Plugin
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.settings.nccl_conf import conf_lines
from ddp_doctor.sources.machine import LiveContext
from tests.checks.test_software import GPU_NODE, compile_library
from tests.fakes import FakeContext
from tests.readings import collected, findings_of, plain_world

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc) to build stand-in libraries")


def live(**env: str) -> LiveContext:
    return LiveContext({"PATH": "/usr/bin:/bin", **env}, time.monotonic() + 60)


def plugin_file(folder: Path, name: str = "libnccl-net.so", *flags: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    compile_library(folder / name, "int ncclNetPlugin_v8;\n", *flags)
    return folder / name


def dlopened(name: str, **env: str) -> str | None:
    code = (
        "import ctypes, sys\n"
        "try: ctypes.CDLL(sys.argv[1])\n"
        "except OSError: sys.exit()\n"
        "print(next(l.split()[-1] for l in open('/proc/self/maps') if l.rstrip().endswith(sys.argv[1].split('/')[-1])))"
    )
    command = (sys.executable, "-c", code, name)
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip() or None


@needs_cc
def test_plugin_in_ld_library_path_is_found_as_by_dlopen(tmp_path):
    plugin_file(tmp_path / "second")
    expected = plugin_file(tmp_path / "first")
    path = f"/nowhere:{tmp_path / 'first'}:{tmp_path / 'second'}"

    (found,) = probe(live(LD_LIBRARY_PATH=path)).plugins

    assert found.path == str(expected) == dlopened("libnccl-net.so", LD_LIBRARY_PATH=path)
    assert found.brought_by == f"LD_LIBRARY_PATH={tmp_path / 'first'}"
    assert (found.setting, found.missing, found.works) == (None, (), True)


@needs_cc
@pytest.mark.parametrize(
    ("asked", "file"), [("ofi", "libnccl-net-ofi.so"), ("libx.so", "libx.so"), ("{}/any.so", "any.so")]
)
def test_named_plugin_is_searched_under_the_names_that_nccl_tries(tmp_path, asked, file):
    expected = plugin_file(tmp_path, file)

    env = {"LD_LIBRARY_PATH": str(tmp_path), "NCCL_NET_PLUGIN": asked.format(tmp_path)}
    (found,) = probe(live(**env)).plugins

    assert (found.path, found.setting) == (str(expected), "NCCL_NET_PLUGIN")


@needs_cc
def test_plugin_with_a_missing_library_does_not_load_and_names_it(tmp_path):
    other = plugin_file(tmp_path / "lib", "libgone-fabric.so.1", "-Wl,-soname,libgone-fabric.so.1")
    plugin_file(tmp_path, "libnccl-net.so", "-Wl,--no-as-needed", str(other))
    other.unlink()

    (found,) = probe(live(LD_LIBRARY_PATH=str(tmp_path))).plugins

    assert dlopened("libnccl-net.so", LD_LIBRARY_PATH=str(tmp_path)) is None
    assert found.missing == ("libgone-fabric.so.1",)
    assert not found.works


@needs_cc
def test_library_loaded_by_torch_is_not_missing(tmp_path):
    cuda = tmp_path / "lib" / "libcudart.so.12"
    plugin_file(tmp_path / "lib", "libcudart.so.12", "-Wl,-soname,libcudart.so.12")
    plugin_file(tmp_path, "libnccl-net.so", "-Wl,--no-as-needed", str(cuda))
    cuda.unlink()

    (found,) = probe(live(LD_LIBRARY_PATH=str(tmp_path))).plugins

    assert found.works


@pytest.mark.parametrize("value", ["aws-ofi", "/nowhere/libnccl-net.so", "ofi,sharp"])
def test_named_plugin_that_does_not_exist_is_missing(value):
    found = probe(live(NCCL_NET_PLUGIN=value)).plugins

    assert [one.asked for one in found] == value.split(",")
    assert all(one.path is None and not one.works for one in found)


def test_node_without_settings_and_plugins_has_no_finding():
    assert probe(live()).plugins == ()
    assert probe(live(NCCL_NET_PLUGIN="none")).plugins == ()


def test_the_linkers_cache_is_searched():
    cache = (
        "2 libs found\n\tlibnccl-net.so (libc6) => /lib32/libnccl-net.so\n"
        "\tlibnccl-net.so (libc6,x86-64) => /x/libnccl-net.so\n"
    )
    (found,) = probe(FakeContext(commands={"/sbin/ldconfig": cache, "ldd": ""})).plugins

    assert found.path == "/x/libnccl-net.so"


def test_plugin_next_to_torch_is_found_by_the_rpath_of_its_libraries():
    children = {"software": '{"torch_folder": "/v/lib/torch"}'}
    context = FakeContext(
        env={"NCCL_NET_PLUGIN": "ofi"},
        files={"/v/lib/nvidia/nccl/lib/libnccl-net-ofi.so": ""},
        children=children,
        commands={"ldd": ""},
    )
    (found,) = probe(context).plugins

    assert found.path == "/v/lib/nvidia/nccl/lib/libnccl-net-ofi.so"


def test_plugin_outside_of_the_linker_path_is_reported():
    folder = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"
    files = {f"{folder}/libnccl-net.so": "", "/sys/class/infiniband/efa_0/node_type": "", "/sys/class/x": ""}
    fact = probe(FakeContext(files=files))

    assert [(one.path, one.elsewhere) for one in fact.plugins] == [(None, (folder,))]
    assert fact.efa_devices == ("efa_0",)


HOME = {"HOME": "/home/me"}


def test_files_are_read_in_the_order_of_nccl_without_secrets():
    files = {
        "/home/me/.nccl.conf": "NCCL_DEBUG=INFO\nNCCL_NOTE=ghp_16C7e42F292c6912E7710c838347Ae178B4a\nAWS_KEY=x\n",
        "/etc/nccl.conf": "NCCL_NET_PLUGIN=none\nNCCL_DEBUG=WARN\n",
    }
    fact = probe(FakeContext(env={**HOME, "NCCL_DEBUG": "TRACE"}, files=files))

    assert [one.path for one in fact.conf] == ["/home/me/.nccl.conf", "/etc/nccl.conf"]
    assert [line.value for line in fact.conf[0].lines] == ["INFO", None, None]
    assert fact.overruled == {"NCCL_DEBUG": "TRACE"}
    assert fact.plugins == ()
    assert "ghp_" not in fact.model_dump_json()
    assert "AWS" not in fact.model_dump_json() or fact.conf[0].lines[2].value is None


def test_a_credential_in_the_place_of_a_plug_in_is_not_recorded():
    env = {**HOME, "NCCL_NET_PLUGIN": "glpat-abcdefgh", "NCCL_NET": "https://me:secret@host"}
    files = {"/etc/nccl.conf": "NCCL_NET_PLUGIN=other\n"}

    assert probe(FakeContext(env=env, files=files)).model_dump_json().find("glpat") == -1
    assert probe(FakeContext(env=env, files=files)).network is None


def test_a_credential_in_the_place_of_a_file_is_not_recorded():
    fact = probe(FakeContext(env={**HOME, "NCCL_CONF_FILE": "/x?api-key=hunter2"}))

    assert "hunter2" not in fact.model_dump_json()
    assert [one.problem for one in fact.conf] == ["looks like a credential"]


def test_only_the_systems_file_is_read_without_a_home():
    files = {"/.nccl.conf": "A=1\n", "/x": "NCCL_DEBUG=INFO\n", "/etc/nccl.conf": "NCCL_DEBUG=WARN\n"}
    fact = probe(FakeContext(env={"NCCL_CONF_FILE": "/x"}, files=files))

    assert [one.path for one in fact.conf] == ["/etc/nccl.conf"]


def test_home_directory_other_than_in_passwd_is_distinguished():
    files = {
        "/proc/self/status": "Name:\tx\nUid:\t1000\t1000\t1000\t1000\n",
        "/home/me/.nccl.conf": "NCCL_DEBUG=INFO\n",
        "/root/.nccl.conf": "NCCL_DEBUG=WARN\n",
    }
    commands = {"getent": "me:x:1000:1000::/home/me:/bin/sh\n"}
    fact = probe(FakeContext(env={"HOME": "/root"}, files=files, commands=commands))

    assert [(one.path, one.reason) for one in fact.conf] == [
        ("/home/me/.nccl.conf", "passwd"),
        ("/root/.nccl.conf", "home"),
    ]


# --- rules ----------------------------------------------------------------------------------------


def findings(*facts: NcclFact, software: Software = GPU_NODE, command: str = "run") -> list[Finding]:
    readings = [
        collected(check, fact, rank)
        for rank, nccl in enumerate(facts)
        for check, fact in (("nccl", nccl), ("software", software))
    ]
    recording = Recording(
        started_at="2026-01-15T10:00:00+00:00",
        world=plain_world(len(facts), 8, "nccl"),
        options=Options(command=command),
        readings=tuple(readings),
    )
    return findings_of(CHECK, recording)


def verdicts(*facts: NcclFact, **more: object) -> list[tuple[str, Severity]]:
    return [(one.code, one.severity) for one in findings(*facts, **more)]  # type: ignore[arg-type]  # any option of a recording


def conf(text: str, reason: str = "user", path: str = "/home/me/.nccl.conf", **overruled: str) -> NcclFact:
    file = ConfFile(path=path, reason=reason, lines=conf_lines(text))  # type: ignore[arg-type]  # a literal
    return NcclFact(conf=(file,), overruled=overruled)


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (conf("NCCL_P2P_LEVEL=NVL\n", NCCL_P2P_LEVEL="SYS"), [("DD229", Severity.INFO)]),
        (conf("NCCL_DEBUG=INFO\n", NCCL_DEBUG="WARN"), [("DD229", Severity.INFO)]),
        (conf("NCCL_P2P_LEVEL=NVL\n", "system", NCCL_P2P_LEVEL="SYS"), [("DD229", Severity.INFO)]),
        (conf("NCCL_P2P_LEVEL=NVL\n", NCCL_P2P_LEVEL="NVL"), []),
    ],
)
def test_value_overridden_by_the_environment_is_reported_if_it_differs(fact, expected):
    assert verdicts(fact) == expected


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("export NCCL_IB_HCA=mlx5_0", "'export NCCL_IB_HCA'"),
        (" NCCL_IB_HCA=mlx5_0", "' NCCL_IB_HCA'"),
        ("NCCL_IB_HCA =mlx5_0", "'NCCL_IB_HCA '"),
        ("NCCL_IB_HCA", 'no "="'),
        ("NCCL_SOCKET_IFNAM=eth0", "did you mean NCCL_SOCKET_IFNAME?"),
        ("NCCL_TIMEOUT=5", "no library reads NCCL_TIMEOUT"),
        ("NCCL_IB_DISABLE=true", "NCCL_IB_DISABLE=true"),
        ('NCCL_P2P_LEVEL="SYS"', "NCCL_P2P_LEVEL="),
        ("NCCL_P2P_LEVEL=SYS\nNCCL_P2P_LEVEL=NVL", "the first line counts"),
    ],
)
def test_line_without_effect_is_reported(line, says):
    (told,) = [one for one in findings(conf(f"{line}\n")) if one.code == "DD230"]

    assert told.severity is Severity.WARNING
    assert says in told.evidence[0].text


def test_named_file_that_is_missing_or_unread_is_reported():
    gone = NcclFact(conf=(ConfFile(path="/x.conf", reason="named", problem="does not exist"),))
    there = NcclFact(conf=(ConfFile(path="/x.conf", reason="named", lines=conf_lines("NCCL_DEBUG=INFO\n")),))
    old = GPU_NODE.model_copy(update={"nccl_loaded": "2.21.5"})

    assert verdicts(gone) == [("DD230", Severity.WARNING)]
    assert verdicts(there) == [("DD228", Severity.INFO)]
    assert verdicts(there, software=old) == [("DD230", Severity.WARNING)]


NAMED = Plugin(kind="net", asked="ofi", setting="NCCL_NET_PLUGIN")
GOOD = Plugin(kind="net", asked="libnccl-net.so", path="/opt/x/libnccl-net.so")
EFA: Any = {"efa_devices": ("efa_0",)}


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (NcclFact(plugins=(NAMED,)), [("DD231", Severity.WARNING)]),
        (NcclFact(plugins=(NAMED.model_copy(update={"unclear": True}),)), []),
        (NcclFact(plugins=(NAMED.model_copy(update={"kind": "profiler"}),)), [("DD231", Severity.INFO)]),
        (NcclFact(plugins=(GOOD,)), []),
        (NcclFact(plugins=(GOOD.model_copy(update={"missing": ("libfabric.so.1",)}),)), [("DD232", Severity.INFO)]),
        (NcclFact(network="IB"), []),
        (NcclFact(network="Socket"), []),
        (NcclFact(network="AWS Libfabric"), [("DD233", Severity.ERROR)]),
        (NcclFact(network="AWS Libfabric", plugins=(GOOD,)), []),
        (NcclFact(**EFA), [("DD234", Severity.INFO)]),
        (NcclFact(**EFA, plugins=(GOOD,)), []),
        (NcclFact(**EFA, network="Socket"), []),
    ],
)
def test_plugins_of_one_node(fact, expected):
    assert verdicts(fact) == expected
