"""A rank of ddp-doctor that exits: its output identifies the cause, as in the output of a job."""

import re

import pytest

from ddp_doctor.engine.hang.rules import deaths
from ddp_doctor.features import FEATURES
from ddp_doctor.features.jobs.table import cause_named
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.trial import Raised, RankEvidence
from tests.engine.test_trial_rules import _rank, _with
from tests.features.jobs.logs.documents import SAMPLES
from tests.readings import only, trial_of
from tests.recordings import load

#: Files with output that a rank itself prints; the first sample of each is used.
NAMED = (
    "cumem-host-unsupported", "device-assert", "disk-full", "driver-library-mismatch", "driver-too-old",
    "fabric-manager-down", "gdr-peermem-missing", "gpu-ecc-error", "gpu-exclusive-mode", "gpu-out-of-memory",
    "host-out-of-memory", "ib-unusable", "imex-not-working", "import-failed", "invalid-device-ordinal", "memlock-limit",
    "nccl-library-conflict", "nccl-not-built", "net-plugin-load-failed", "no-gpu-visible", "no-kernel-image",
    "no-socket-interface", "nvml-missing", "port-in-use", "shm-permission", "shm-too-small", "too-many-open-files",
)  # fmt: skip
SAMPLE = {sample.cause: next(iter(sample.files.values())) for sample in reversed(SAMPLES) if not sample.silent}


def found(rank: RankEvidence, innocent: RankEvidence | None = None) -> Finding:
    recording = _with(load("torchrun/healthy"), trial_of(innocent or _rank(0), rank))
    return only([*deaths.died.apply(recording), *deaths.raised.apply(recording)])


@pytest.mark.parametrize("cause", NAMED)
def test_last_output_of_a_dead_rank_gives_the_cause_and_the_fix(cause: str):
    known = cause_named(cause)
    assert known is not None

    finding = found(_rank(1, exit_code=1, exited_at=2.0, output_tail=SAMPLE[cause]))

    assert re.findall(r"explain (DDJ\d+)", finding.detail) == [known.code]
    assert finding.remedies[0].summary == known.remedies[0].summary
    assert [culprit.rank for culprit in finding.culprits] == [1]


def test_broken_feature_logs_does_not_hide_a_dead_rank(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FEATURES, "logs", FEATURES["logs"]._replace(package="gone"))

    finding = found(_rank(1, exit_code=1, exited_at=2.0, output_tail=SAMPLE["disk-full"]))

    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert "ddp-doctor explain" not in finding.detail


def test_known_error_of_a_rank_that_raised_is_explained_with_its_line():
    message = "CUDA error: no kernel image is available for execution on the device"
    raising = _rank(1, raised=Raised(type="RuntimeError", message=message, where="a.py:7"))

    finding = found(raising)

    assert finding.title == "Rank 1 raised RuntimeError at a.py:7 in check allreduce"
    assert finding.detail.startswith(
        f"Its message: {message}. Rank 0 waits for it in check allreduce. Cause from its output: "
    )
    assert finding.detail.endswith("(ddp-doctor explain DDJ128).")


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9445",
        "torch.distributed.DistBackendError: NCCL error, remote process exited or there was a network error",
        "step 3: loss 0.7",
        "",
    ],
)
def test_uninformative_last_output_gives_no_cause(words: str):
    finding = found(_rank(1, exit_code=7, exited_at=2.0, output_tail=words))

    assert "ddp-doctor explain" not in finding.detail
    assert finding.remedies[0].summary == "Read the rank's last output; it exited without a signal"


def test_out_of_memory_count_of_the_cgroup_needs_no_output():
    killed = _rank(1, exit_code=-9, exited_at=2.0, out_of_memory=True, output_tail=SAMPLE["shm-too-small"])

    assert "ddp-doctor explain" not in found(killed).detail
