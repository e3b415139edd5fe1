"""The software check: real files, a real dynamic linker and stand-ins for NVIDIA's libraries."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks.node.software import CHECK, probe
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.facts.collectives import TorchImport
from ddp_doctor.facts.node.software import HiddenModule, Software
from ddp_doctor.model.choices import Severity, Status
from ddp_doctor.model.context import CommandResult
from ddp_doctor.model.fact import Failed, Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.sources import machine
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext
from tests.measured import MEASURED
from tests.once import once
from tests.readings import findings_of, of_nodes, plain_world

CC = shutil.which("cc")
needs_cc = pytest.mark.skipif(CC is None, reason="needs a C compiler (cc) to build stand-in libraries")
OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@host)\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n"
)
GPU_NODE = Software(
    python="3.11.7",
    machine="x86_64",
    torch_version="2.9.1+cu128",
    torch_metadata_version="2.9.1",
    torch_cuda="12.8",
    torch_requires_python=">=3.10",
    nccl_required_by_torch="2.27.5",
    nccl_packages={"nvidia-nccl-cu12": "2.27.5"},
    nccl_library="/v/nvidia/nccl/lib/libnccl.so.2",
    nccl_loaded="2.27.5",
    driver="580.95.05",
    gpu_devices=8,
)


def live(tmp_path: Path | None = None, **env: str) -> LiveContext:
    paths = {"PYTHONPATH": str(tmp_path)} if tmp_path else {}
    return LiveContext({"PATH": "/usr/bin:/bin", **MEASURED, **paths, **env}, time.monotonic() + 60)


def recording(*facts: Software, command: str = "run", **options: Any) -> Recording:
    return Recording(
        started_at="2026-01-15T10:00:00+00:00",
        world=plain_world(len(facts), 8, "nccl"),
        options=Options(command=command, **options),
        readings=of_nodes("software", facts),
    )


def findings(*facts: Software, **options: Any) -> list[Finding]:
    return findings_of(CHECK, recording(*facts, **options))


def verdicts(*facts: Software, **options: Any) -> list[tuple[str, Severity]]:
    return [(finding.code, finding.severity) for finding in findings(*facts, **options)]


def but(**changes: object) -> Software:
    return GPU_NODE.model_copy(update=changes)


class Installation:
    """A site-packages folder with a stand-in torch, and libraries that the real linker resolves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.torch = folder / "torch"
        (self.torch / "lib").mkdir(parents=True)
        (self.torch / "_C.cpython-311-x86_64-linux-gnu.so").touch()
        (self.torch / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
        self.version("2.7.0+cu126", "'12.6'")
        self.metadata("torch", "2.7.0", 'Requires-Dist: nvidia-nccl-cu12==2.26.2; platform_system == "Linux"')

    def version(self, version: str, cuda: str) -> None:
        text = f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n"
        (self.torch / "version.py").write_text(text + "hip: Optional[str] = None\ngit_version = 'abc'\n")

    def metadata(self, name: str, version: str, *lines: str) -> None:
        folder = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        text = "\n".join(("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""))
        (folder / "METADATA").write_text(text)

    def nccl(self, body: str = "*v = 22602; return 0;", at: str = "nvidia/nccl/lib") -> Path:
        """Compile a libnccl.so.2 whose ncclGetVersion has this body."""
        library = self.folder / at / "libnccl.so.2"
        library.parent.mkdir(parents=True, exist_ok=True)
        code = f"#include <stdlib.h>\nint ncclGetVersion(int *v) {{ {body} }}\n"
        compile_library(library, code, "-Wl,-soname,libnccl.so.2")
        return library

    def cuda_library(self, nccl: Path | None, *flags: str) -> None:
        """Compile a libtorch_cuda.so that needs libnccl.so.2, found as in the wheels."""
        library = self.torch / "lib" / "libtorch_cuda.so"
        code = "int ncclGetVersion(int *);\nint use(int *v) { return ncclGetVersion(v); }\n"
        if nccl is None:
            compile_library(library, "int nothing;\n", *flags)
        else:
            compile_library(library, code, "-Wl,--no-as-needed", *flags, needs=nccl.read_bytes())


def compile_library(library: Path, code: str, *flags: str, needs: bytes = b"") -> None:
    """``needs`` is another library, of any name; the linker takes down its soname."""
    inputs = hashlib.sha256(repr((code, flags, needs)).encode()).hexdigest()[:16]
    made = once(f"library-{inputs}", lambda folder: _compile(folder, code, flags, needs))
    library.write_bytes((made / "library.so").read_bytes())


def _compile(folder: Path, code: str, flags: tuple[str, ...], needs: bytes) -> None:
    assert CC is not None
    source, needed = folder / "source.c", folder / "needed.so"
    source.write_text(code)
    needed.write_bytes(needs)
    inputs = (source, needed) if needs else (source,)
    subprocess.run([CC, "-shared", "-fPIC", "-o", folder / "library.so", *inputs, *flags], check=True)


RPATH = ("-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib")


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "site")


def test_the_real_installation_is_read_without_importing_torch():
    context = live()
    fact = probe(context)
    assert fact.python == ".".join(map(str, sys.version_info[:3]))
    installed = importlib.metadata.version("torch")
    assert fact.torch_version is not None
    assert fact.torch_version.split("+")[0] == installed.split("+")[0]
    assert fact.torch_problem is None
    assert context.raw is not None
    assert "torch_version" in context.raw


@needs_cc
def test_loaded_and_required_nccl_of_a_wheel_installation(installation):
    installation.cuda_library(installation.nccl(), *RPATH)
    fact = probe(live(installation.folder))
    assert (fact.torch_version, fact.torch_cuda, fact.torch_hip) == ("2.7.0+cu126", "12.6", None)
    assert fact.torch_folder == str(installation.torch)
    assert (fact.nccl_required_by_torch, fact.nccl_loaded) == ("2.26.2", "2.26.2")
    assert fact.nccl_library is not None
    assert Path(fact.nccl_library).resolve() == installation.folder / "nvidia/nccl/lib/libnccl.so.2"
    assert fact.nccl_problem is None


@needs_cc
def test_ld_library_path_beats_a_runpath(installation):
    other = installation.nccl("*v = 22907; return 0;", at="../other")
    installation.cuda_library(installation.nccl(), "-Wl,--enable-new-dtags", *RPATH[1:])
    fact = probe(live(installation.folder, LD_LIBRARY_PATH=str(other.parent.resolve())))
    assert fact.nccl_loaded == "2.29.7"


@needs_cc
def test_a_missing_library_is_a_fault(installation):
    nccl = installation.nccl()
    installation.cuda_library(nccl, *RPATH)
    nccl.unlink()
    fact = probe(live(installation.folder))
    assert fact.nccl_fault == "libnccl.so.2 was not found"
    assert fact.nccl_loaded is None
    assert ("DD207", Severity.ERROR) in verdicts(fact)


@needs_cc
def test_a_library_that_the_linker_misses_but_torch_preloads_is_found_in_the_wheel(installation):
    installation.cuda_library(installation.nccl())
    assert probe(live(installation.folder)).nccl_loaded == "2.26.2"


@needs_cc
def test_nccl_built_into_torch_is_not_confused_with_an_unused_copy(installation):
    installation.nccl()
    installation.cuda_library(None)
    fact = probe(live(installation.folder))
    assert fact.nccl_loaded is None
    assert fact.nccl_problem is not None
    assert "built in" in fact.nccl_problem
    assert verdicts(fact) == []


@needs_cc
def test_library_that_crashes_when_queried_affects_only_its_own_answer(installation):
    installation.cuda_library(installation.nccl("abort();"), *RPATH)
    fact = probe(live(installation.folder))
    assert fact.torch_version == "2.7.0+cu126"
    assert fact.nccl_fault == "asking it for its version ended with signal 6"


@needs_cc
def test_a_library_that_prints_first_is_still_understood(installation):
    body = "#include <stdio.h>\n"
    library = installation.nccl()
    code = body + 'int ncclGetVersion(int *v) { puts("hello"); fflush(stdout); *v = 22005; return 0; }\n'
    compile_library(library, code, "-Wl,-soname,libnccl.so.2")
    installation.cuda_library(library, *RPATH)
    assert probe(live(installation.folder)).nccl_loaded == "2.20.5"


@needs_cc
def test_file_that_is_not_a_library_is_a_fault(installation):
    library = installation.nccl()
    installation.cuda_library(library)
    library.write_bytes(b"not a library")
    fact = probe(live(installation.folder))
    assert fact.nccl_fault is not None
    assert "libnccl.so.2" in fact.nccl_fault


def test_a_torch_without_version_file_is_broken(installation):
    (installation.torch / "version.py").unlink()
    fact = probe(live(installation.folder))
    assert fact.torch_problem is not None
    assert verdicts(fact) == [("DD201", Severity.ERROR)]


def test_a_version_file_is_never_run(installation, tmp_path):
    trap = f"open({str(tmp_path / 'trap')!r}, 'w')\n__version__ = '2.7.0' + open('/dev/null').read()\n"
    (installation.torch / "version.py").write_text(trap)
    fact = probe(live(installation.folder))
    assert fact.torch_problem is not None
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("text", [b"\xff\x00\xfe", b"def (", b"", b"__version__ = None\n"])
def test_a_version_file_of_garbage_is_a_problem_with_a_reason(installation, text):
    (installation.torch / "version.py").write_bytes(text)
    assert probe(live(installation.folder)).torch_problem


FOUND = '{"python": "3.11.7", "machine": "x86_64", "torch_folder": "/opt/torch"}'


@pytest.mark.parametrize(
    ("env", "files", "hidden"),
    [
        ({"PYTHONPATH": "/a:/b"}, ["/b/random.py"], [("/b/random.py", "PYTHONPATH")]),
        ({"PYTHONPATH": "/a:/b"}, ["/a/json.py", "/b/json.py"], [("/a/json.py", "PYTHONPATH")]),
        ({"PYTHONPATH": ":/a"}, ["/work/random.py"], [("/work/random.py", "PYTHONPATH")]),
        ({"PYTHONPATH": "lib"}, ["/work/lib/random.py"], [("/work/lib/random.py", "PYTHONPATH")]),
        ({"PYTHONPATH": "/opt:/b"}, ["/opt/torch/__init__.py"], [("/opt/torch/__init__.py", "PYTHONPATH")]),
        ({"PYTHONPATH": "/opt:/b"}, ["/opt/torch/__init__.py", "/opt/torch/_C.cpython-311.so", "/b/torch.py"], []),
        ({"PYTHONPATH": ""}, ["/work/torch.py"], [("/work/torch.py", "working directory")]),
        ({}, ["/work/logging/__init__.py"], [("/work/logging/__init__.py", "working directory")]),
        ({"PYTHONSAFEPATH": "1"}, ["/work/logging/__init__.py"], []),
        ({}, ["/work/utils/__init__.py", "/work/train.py", "/work/torch.pyi", "/work/json/data.json"], []),
    ],
)
def test_files_that_hide_standard_modules_are_found_by_name(env, files, hidden):
    context = FakeContext(
        env=env, files=dict.fromkeys(files, ""), links={"/proc/self/cwd": "/work"}, children={"software": FOUND}
    )
    assert [(module.file, module.by) for module in probe(context).hidden_modules] == hidden


def test_torch_py_on_pythonpath_is_reported_without_calling_torch_broken(tmp_path):
    for module in ("torch", "random", "json"):  # the helper itself needs the last two
        (tmp_path / f"{module}.py").write_text("raise SystemExit('it was imported')\n")
    fact = probe(live(tmp_path))
    assert fact.torch_problem == f"{tmp_path}/torch.py is found in the place of torch"
    assert {module.module for module in fact.hidden_modules} == {"torch", "random", "json"}
    (finding,) = findings(fact)
    assert finding.code == "DD211"
    assert finding.title.startswith(
        f"{tmp_path}/json.py, {tmp_path}/random.py and {tmp_path}/torch.py are imported instead of torch"
    )
    assert f"Remove {tmp_path} from PYTHONPATH" in finding.remedies[1].summary
    assert {culprit.kind for culprit in finding.culprits} == {"file"}


def test_hidden_module_explains_failed_imports_on_the_same_nodes_only():
    hidden = HiddenModule(module="random", file="/a/random.py", by="PYTHONPATH")
    seen = recording(GPU_NODE, but(hidden_modules=(hidden,)))
    failed = [
        Reading(
            check="process_group", status=Status.FAILED, node=node, fact=TorchImport(import_s=0, error=error).recorded()
        )
        for node, error in enumerate(("ImportError: libcudart.so.12", "ImportError: Random"))
    ]
    found = diagnose(seen.model_copy(update={"readings": (*seen.readings, *failed)})).findings
    assert [(f.code, f.culprits[0].node_rank) for f in found] == [("DD211", 1), ("DD603", 0)]


SCRIPT = str(Path(machine.__file__).with_name("child_software.py"))


def test_a_leftover_folder_without_code_is_broken(tmp_path):
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    path = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r})"
    run = f"runpy.run_path({SCRIPT!r}, run_name='__main__')"
    answer = live().run((sys.executable, "-S", "-c", f"{path}; {run}"))
    assert "only partly installed" in answer.stdout


def test_torch_is_missing_without_site_packages():
    answer = live().run((sys.executable, "-S", SCRIPT))
    assert "torch is not installed" in answer.stdout


def test_a_helper_without_an_answer_is_a_failure_not_a_fact():
    for answer in ("", "Traceback\n", "[]", '{"python": 3}'):
        with pytest.raises(Failed, match="gave no answer"):
            probe(FakeContext(children={"software": answer}))
    late = CommandResult(("software",), "timed_out")
    with pytest.raises(Failed, match="it timed out"):
        probe(FakeContext(children={"software": late}))


ANSWER = '{"python": "3.11.7", "machine": "x86_64", "torch_version": "2.7.0+cu126", "torch_cuda": "12.6"'


def test_driver_and_devices_come_from_proc_and_dev():
    files = {"/proc/driver/nvidia/version": OPEN_DRIVER, "/dev/nvidia0": "", "/dev/nvidia11": ""}
    files |= {"/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/usr/local/cuda/compat/libcuda.so.1": ""}
    fact = probe(FakeContext(files=files, children={"software": ANSWER + "}"}))
    assert (fact.driver, fact.gpu_devices) == ("580.95.05", 2)
    assert fact.forward_compatibility == "/usr/local/cuda/compat"


def test_driver_that_cannot_be_queried_has_a_reason():
    for text, reason in ((PermissionError(13, "Permission denied"), "Permission denied"), ("???", "understood")):
        fact = probe(FakeContext(files={"/proc/driver/nvidia/version": text}, children={"software": ANSWER + "}"}))
        assert fact.driver is None
        assert reason in (fact.driver_problem or "")


def test_copy_of_the_wheel_counts_without_ldd():
    answer = ANSWER + ', "torch_cuda_library": "/t/libtorch_cuda.so", "nccl_files": ["/w/libnccl.so.2"]}'
    fact = probe(FakeContext(children={"software": answer, "nccl": '{"version_code": 22602}'}))
    assert (fact.nccl_library, fact.nccl_loaded) == ("/w/libnccl.so.2", "2.26.2")


def test_nccl_is_unknown_without_ldd_and_without_a_copy():
    fact = probe(FakeContext(children={"software": ANSWER + ', "torch_cuda_library": "/t/libtorch_cuda.so"}'}))
    assert (fact.nccl_library, fact.nccl_fault) == (None, None)
    assert "without ldd" in (fact.nccl_problem or "")


def test_a_slow_library_is_not_a_faulty_one():
    answer = ANSWER + ', "torch_cuda_library": "/t/libtorch_cuda.so", "nccl_files": ["/w/libnccl.so.2"]}'
    late = CommandResult(("nccl",), "timed_out")
    fact = probe(FakeContext(children={"software": answer, "nccl": late}))
    assert fact.nccl_fault is None
    assert "in time" in (fact.nccl_problem or "")


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        ("535.129.03", "12.8", []),
        ("525.60.13", "12.6", []),
        ("525.60.11", "12.6", [("DD204", Severity.ERROR)]),
        ("470.82.01", "12.1", [("DD204", Severity.ERROR)]),
        ("570.124.06", "13.0", [("DD204", Severity.ERROR)]),
        ("580.65.06", "13.0", []),
        ("470.82.01", "11.8", []),
        ("470.82.01", "99.1", []),
        ("470.82.01", "none", []),
    ],
)
def test_driver_is_compared_with_cuda(driver, cuda, expected):
    assert verdicts(but(driver=driver, torch_cuda=cuda)) == expected


def test_old_driver_with_forward_compatibility_is_info():
    old = but(driver="470.82.01", forward_compatibility="/usr/local/cuda/compat")
    assert verdicts(old) == [("DD204", Severity.INFO)]


def matching(nccl: str, torch: str, machine: str = "x86_64") -> Software:
    return but(
        nccl_loaded=nccl,
        nccl_required_by_torch=nccl,
        torch_version=torch,
        torch_metadata_version=torch,
        machine=machine,
    )


@pytest.mark.parametrize(
    ("fact", "nodes", "known"),
    [
        (matching("2.26.2", "2.7.0+cu126"), 1, True),
        (matching("2.26.2", "2.7.1+cu126"), 1, False),
        (matching("2.29.2", "2.12.0", "aarch64"), 1, True),
        (matching("2.29.2", "2.12.0", "x86_64"), 1, False),
        (matching("2.28.7", "2.11.0"), 1, False),
        (matching("2.28.7", "2.11.0"), 2, True),
        (matching("2.28.9", "2.11.0"), 2, False),
    ],
)
def test_known_faults_are_reported_only_if_the_job_can_hit_them(fact, nodes, known):
    assert verdicts(*[fact] * nodes) == ([("DD206", Severity.WARNING)] if known else [])


@pytest.mark.parametrize(
    ("torch", "nccl"),
    [("2.4.1", "2.20.5"), ("2.5.1", "2.21.5"), ("2.6.0", "2.21.5"), ("2.8.0", "2.27.3"), ("2.13.0", "2.29.7")],
)
def test_no_released_pair_of_torch_and_nccl_is_reported_in_general(torch, nccl):
    assert verdicts(matching(nccl, torch), matching(nccl, torch)) == []


@needs_cc
def test_preloaded_library_wins_and_its_setting_is_shown(installation):
    other = installation.nccl("*v = 22907; return 0;", at="../other").resolve()
    installation.cuda_library(installation.nccl(), *RPATH)
    preloaded = probe(live(installation.folder, LD_PRELOAD=str(other)))
    assert (preloaded.nccl_loaded, preloaded.nccl_library) == ("2.29.7", str(other))
    assert preloaded.nccl_brought_by == f"LD_PRELOAD={other}"
    (told,) = findings(but(**preloaded.model_dump(include={"nccl_loaded", "nccl_library", "nccl_brought_by"})))
    assert f"brought by LD_PRELOAD={other}" in told.evidence[0].text


@needs_cc
def test_copy_in_ld_library_path_loses_to_the_rpath_of_the_wheels(installation):
    other = installation.nccl("*v = 22907; return 0;", at="../other").resolve()
    installation.cuda_library(installation.nccl(), *RPATH)
    fact = probe(live(installation.folder, LD_LIBRARY_PATH=str(other.parent)))
    assert (fact.nccl_loaded, fact.nccl_brought_by) == ("2.26.2", None)
    assert fact.nccl_offered == {str(other): f"LD_LIBRARY_PATH={other.parent}"}
    assert verdicts(but(nccl_offered=fact.nccl_offered)) == [("DD209", Severity.INFO)]


@needs_cc
def test_copy_next_to_a_torch_with_built_in_nccl_has_no_effect(installation):
    other = installation.nccl(at="../other").resolve()
    installation.cuda_library(None)
    fact = probe(live(installation.folder, LD_LIBRARY_PATH=str(other.parent)))
    assert [code for code, _ in verdicts(fact)] == ["DD209"]


TWO = {"nvidia-nccl-cu12": "2.27.5", "nvidia-nccl-cu13": "2.27.5"}
SIZES = {"nvidia-nccl-cu12": 12, "nvidia-nccl-cu13": 13}


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({"nccl_file_bytes": 12}, Severity.INFO),
        ({"nccl_file_bytes": 13}, Severity.WARNING),
        ({"nccl_file_bytes": 13, "driver": "550.54.15"}, Severity.ERROR),
        ({"nccl_file_bytes": 13, "driver": "550.54.15", "forward_compatibility": "/c/compat"}, Severity.WARNING),
        ({"nccl_file_bytes": None}, Severity.WARNING),
    ],
)
def test_severity_of_two_packages_with_one_file_depends_on_the_file(changes, severity):
    (told,) = findings(but(nccl_packages=TWO, nccl_sizes=SIZES, **changes))
    assert (told.code, told.severity) == ("DD208", severity)
    assert told.remedies[0].commands == (
        "python -m pip uninstall -y nvidia-nccl-cu13",
        "python -m pip install --force-reinstall --no-deps nvidia-nccl-cu12==2.27.5",
    )


def test_sizes_are_read_from_each_packages_record(installation):
    library = installation.folder / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"x" * 13)
    for package, size in SIZES.items():
        installation.metadata(package, "2.27.5")
        record = installation.folder / f"{package.replace('-', '_')}-2.27.5.dist-info" / "RECORD"
        record.write_text(f"nvidia/nccl/lib/libnccl.so.2,sha256=x,{size}\n{record.parent.name}/METADATA,,\n")
    fact = probe(live(installation.folder))
    assert (fact.nccl_packages, fact.nccl_sizes, fact.nccl_file_bytes) == (TWO, SIZES, 13)


C10D = """
    for entrypoint in entry_points(group="torch.distributed.backends"):
def _nccl2_device(opts):
        if os.environ.get("TORCH_DIST_USE_NCCL2") == "0"
"""


def test_torch_without_any_backend_is_an_error(installation):
    source = installation.torch / "distributed" / "distributed_c10d.py"
    source.parent.mkdir()
    source.write_text(C10D)
    fact = probe(live(installation.folder))

    assert (fact.torch_looks_backends_up, fact.torch_backends) == (True, ())
    (told,) = [finding for finding in findings(fact) if finding.code == "DD210"]
    assert "finds neither gloo nor NCCL" in told.title


def test_torch_whose_metadata_offers_backends_has_no_finding(installation):
    source = installation.torch / "distributed" / "distributed_c10d.py"
    source.parent.mkdir()
    source.write_text(C10D)
    (installation.folder / "torch-2.7.0.dist-info" / "entry_points.txt").write_text(
        "[torch.distributed.backends]\nGLOO = torch.distributed.distributed_c10d:_register_builtin_gloo_backend\n"
        "nccl2 = torch.distributed.distributed_c10d:_register_builtin_nccl2_backend\n"
    )
    fact = probe(live(installation.folder))

    assert (fact.torch_looks_backends_up, fact.torch_backends) == (True, ("gloo", "nccl2"))
    assert (fact.torch_nccl2_switch, fact.torch_nccl2_takes_local_rank) == ("0", True)
    assert "DD210" not in [code for code, _ in verdicts(fact)]


@pytest.mark.parametrize("source", [None, "Backend.GLOO\n"], ids=["unreadable", "older"])
def test_a_torch_that_knows_its_backends_needs_no_metadata(installation, source):
    if source is not None:
        (installation.torch / "distributed").mkdir()
        (installation.torch / "distributed" / "distributed_c10d.py").write_text(source)
    fact = probe(live(installation.folder))

    assert fact.torch_looks_backends_up is (None if source is None else False)
    assert "DD210" not in [code for code, _ in verdicts(fact)]
