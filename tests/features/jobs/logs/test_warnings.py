"""Warnings that contain the words of a failure, in jobs that train to the end."""

from pathlib import Path

import pytest

from ddp_doctor.features.jobs.logs.use_case import logs

WARNINGS = {
    "a missing library": "libcusparse.so.11: cannot open shared object file: No such file or directory",
    "an extension": "warning: /env/lib/apex/amp_C.so: undefined symbol: _ZN3c10, falling back to Python",
    "a newer libc": "warning: /lib/libc.so.6: version `GLIBC_2.32' not found (required by /env/a.so), using Python",
    "two CUDA versions": "UserWarning: The detected CUDA version (12.1) mismatches the version that was used to compile"
    " PyTorch (12.4). Most likely this shouldn't be a problem.",
    "bitsandbytes": "CUDA Setup failed despite GPU being available. Please run the following command:",
    "a header": "aio.c:1:10: fatal error: libaio.h: No such file or directory",
    "a file on NFS": "rm: cannot remove '.nfs0001': Stale file handle",
    "a quota": "tee: log.txt: Disk quota exceeded",
    "another pod": "other-worker-3   0/1   CrashLoopBackOff   5   3m",
    "a pod that waits": "pod job-master-0 is waiting to start: ContainerCreating",
    "a batch": "WARNING: batch 7 with world_size 8 is not divisible by 8, padding",
    "a server": "ERROR: requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub/x",
    "a step": "srun: error: Unable to create step for job 4711: Job/step already completing or completed",
    "another job": "sbatch: error: Batch job submission failed: Invalid account or account/partition combination",
    "a layer": "UserWarning: size mismatch for head.weight: copying a param with shape torch.Size([10]), skipped",
}


@pytest.mark.parametrize("warning", WARNINGS.values(), ids=WARNINGS)
def test_warning_does_not_fail_a_finished_job(warning: str, tmp_path: Path):
    steps = "".join(f"step {step} loss {1 / step:.3f}\n" for step in range(1, 6))
    (tmp_path / "job.out").write_text(f"starting on node0\n{warning}\n{steps}Training finished\n")

    report = logs([str(tmp_path / "job.out")]).report

    assert (report.exit_code, report.findings) == (0, ())


@pytest.mark.parametrize(
    "last",
    [
        "Done",
        "+ echo 'training done'",
        "Job finished at 10:00 with exit code 1",
        "[x] job epilog finished on node0",
        "toolkit INFO Finished uploading logs, exiting.",
        "toolkit INFO Done waiting for a return code. Received 1 from exiting process.",
    ],
)
def test_last_line_of_a_script_does_not_hide_a_failure(last: str, tmp_path: Path):
    failed = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + "=" * 60 + "\ntrain.py FAILED\n"
    cause = "Root Cause (first observed failure):\n[0]:\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 77)\n"
    (tmp_path / "job.out").write_text(f"{failed}{cause}{last}\n")

    assert logs([str(tmp_path / "job.out")]).report.exit_code == 3


def test_output_that_ends_within_a_traceback_is_unsure(tmp_path: Path):
    frames = 'Traceback (most recent call last):\n  File "t.py", line 7\n    main()\n'
    (tmp_path / "job.out").write_text(f"100%|###| 99/99 [00:03<00:00, 30.05it/s]\n{frames}")

    assert logs([str(tmp_path / "job.out")]).report.exit_code == 3
