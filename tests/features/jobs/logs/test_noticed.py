"""Signs of trouble that did not end a job: info findings, and no failure."""

from pathlib import Path

import pytest

from ddp_doctor.features.jobs.logs.use_case import logs

XID = "[81234.1] NVRM: Xid (PCI:0000:2b:00): {}, pid=811, RLW_RXPIPE {} XC0 i0 Link 12 (0x00000004)"
SXID = "[81235.1] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress"
LOSSES = ["epoch 1: loss 0.8", "epoch 2: loss nan", "epoch 3: loss: NaN", "epoch 4: loss=inf"]


@pytest.mark.parametrize(
    ("lines", "titles"),
    [
        pytest.param(LOSSES, ["Every loss in the last 4 lines of job.out is NaN or infinite"], id="nan to the end"),
        pytest.param([*LOSSES, "epoch 5: loss 0.7"], [], id="a loss recovers"),
        pytest.param(LOSSES[:3], [], id="two losses"),
        pytest.param([LOSSES[0], *["final loss nan"] * 3], [], id="three ranks print one loss"),
        pytest.param(
            [f"epoch {number}: aux_loss nan, loss 0.7" for number in range(4)], [], id="another loss is finite"
        ),
        pytest.param(
            [XID.format(145, "Nonfatal"), XID.format(149, "Nonfatal"), SXID, *LOSSES[:1]],
            [
                "NVLink of 0000:2b:00 reports 2 non-fatal errors (Xid 145 and Xid 149)",
                "NVLink of 0000:c1:00.0 reports 1 non-fatal error (SXid 12028)",
            ],
            id="NVLink recovers",
        ),
        pytest.param([XID.format(62, "Nonfatal")], [], id="an Xid of another kind"),
    ],
)
def test_trouble_that_does_not_end_the_job_does_not_fail_it(lines: list[str], titles: list[str], tmp_path: Path):
    (tmp_path / "job.out").write_text("\n".join([*lines, "Training complete"]) + "\n")

    report = logs([str(tmp_path / "job.out")]).report

    found = [finding.title.replace(f"{tmp_path}/", "") for finding in report.findings]
    assert (report.exit_code, found) == (0, titles)


BEGUN = "n{0}:7{0}:9{0} [0] NCCL INFO Bootstrap: Using eth0:10.0.0.{0}<0>"


@pytest.mark.parametrize(
    ("version", "lines", "titles"),
    [
        pytest.param(
            "2.28.3",
            ["[rank0]: Watchdog caught collective operation timeout"],
            ["NCCL 2.28.3 can hang at large scale because its main and proxy threads are not ordered"],
            id="a hang with an affected release",
        ),
        pytest.param("2.28.9", ["[rank0]: Watchdog caught collective operation timeout"], [], id="a fixed release"),
        pytest.param("2.28.3", ["Training complete"], [], id="a job that finished"),
    ],
)
def test_known_nccl_bug_is_reported_unless_the_job_finished(
    version: str, lines: list[str], titles: list[str], tmp_path: Path
):
    begin = [BEGUN.format(1), BEGUN.format(2), f"NCCL version {version}+cuda12.9"]
    (tmp_path / "job.out").write_text("\n".join([*begin, *lines]) + "\n")

    report = logs([str(tmp_path / "job.out")]).report

    assert [finding.title for finding in report.findings if finding.code == "DDJ207"] == titles
