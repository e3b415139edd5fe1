import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.model.context import CommandResult
from ddp_doctor.parse.software import (
    driver_version,
    gpus_hidden_by,
    linked_library,
    nccl_answer,
    nccl_release,
    pinned_nccl,
)

DRIVERS = {
    "x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n": "535.129.03",
    "x86_64 Kernel Module 390.48 Thu Mar 22 00:42:57 PDT 2018\n": "390.48",
    "Open Kernel Module for aarch64  540.4.0  Release Build  (b@h)  Tue\n": "540.4.0",
    "Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version:": "580.95.05",
    "Open Kernel Module for x86_64  580.65": "580.65",
}


@pytest.mark.parametrize(("text", "version"), DRIVERS.items())
def test_driver_versions_of_real_kernel_modules(text, version):
    assert driver_version(f"NVRM version: NVIDIA UNIX {text}") == version


@given(st.integers(2, 9), st.integers(9, 99), st.integers(0, 99))
def test_nccl_codes_since_2_9_are_read_back(major, minor, patch):
    assert nccl_release(major * 10000 + minor * 100 + patch) == f"{major}.{minor}.{patch}"


@pytest.mark.parametrize(
    ("requirements", "version"),
    [
        (['nvidia-nccl-cu12==2.26.2; platform_system == "Linux"'], "2.26.2"),
        (["nvidia-nccl-cu12 (==2.18.1) ; platform_system == 'Linux'"], "2.18.1"),
        (["nvidia-cudnn-cu13==9.1", "nvidia-nccl-cu13==2.29.7"], "2.29.7"),
        (["nvidia-nccl-cu12>=2.20"], None),
        (["my-nvidia-nccl-cu12==2.20.5"], None),
        ([], None),
    ],
)
def test_the_pinned_nccl(requirements, version):
    assert pinned_nccl(requirements) == version


LDD = """\
\tlinux-vdso.so.1 (0x00007ffd7a5f2000)
\tlibc10.so => /v/torch/lib/libc10.so (0x00007f2a3d000000)
\tlibnccl.so.2 => /v/a (b)/nvidia/nccl/lib/libnccl.so.2 (0x00007f2a3c000000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f2a3e000000)
"""


def test_the_linkers_choice_is_read_from_ldd():
    assert linked_library(LDD, "libnccl.so.2") == "/v/a (b)/nvidia/nccl/lib/libnccl.so.2"
    assert linked_library(LDD, "libmpi.so") is None
    missing = LDD.replace("/v/a (b)/nvidia/nccl/lib/libnccl.so.2 (0x00007f2a3c000000)", "not found")
    assert linked_library(missing, "libnccl.so.2") == "not found"
    preloaded = "\t/opt/nccl/libnccl.so.2 (0x00007f2a3c000000)\n" + LDD
    assert linked_library(preloaded, "libnccl.so.2") == "/opt/nccl/libnccl.so.2"


def answered(text: str, returncode: int = 0) -> CommandResult:
    return CommandResult(("nccl",), "ended", returncode, text)


def test_answers_of_the_nccl_helper():
    assert nccl_answer(answered('noise\n{"version_code": 22907}\n')) == {"nccl_loaded": "2.29.7"}
    assert nccl_answer(answered('{"error": "x: cannot open"}')) == {"nccl_fault": "x: cannot open"}
    assert nccl_answer(answered("", -11)) == {"nccl_fault": "asking it for its version ended with signal 11"}


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES="),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES=-1"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "CUDA_VISIBLE_DEVICES=NoDevFiles"),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, "NVIDIA_VISIBLE_DEVICES=void"),
        ({"SLURM_JOB_ID": "7"}, "SLURM, which granted this job no GPU"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}, None),
    ],
)
def test_setting_that_hides_gpus_from_a_job_is_found(env, reason):
    assert gpus_hidden_by(env) == reason


def test_too_deeply_nested_answer_is_a_problem():
    answer = CommandResult(("helper",), "ended", 0, "[" * 100_000)

    assert "nccl_problem" in nccl_answer(answer)
