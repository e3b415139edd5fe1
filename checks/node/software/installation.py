"""DD201, DD202, DD210: a torch that is not whole, finds no backend, or it or Python too old."""

from collections.abc import Iterator

from ddp_doctor.checks.node.software import wording
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge import versions
from ddp_doctor.knowledge.versions import release
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.software import folder_without_backends, of_the_job
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import by_cause, of_nodes


@rule("DD201", "torch-installation-broken", Severity.ERROR, Software)
def torch_installation_broken(recording: Recording) -> Iterator[Draft]:
    """No whole torch for the Python that runs the job.

    What it finds
        torch is not installed for this interpreter, or its folder or version file is missing or unreadable;
        a warning where its files and its package metadata are of different versions.

    Why it matters
        Every rank fails at `import torch`; one version written over another fails differently each time.

    Remedy
        Install torch anew in this environment, or start the doctor with the job's own Python.

    References
        https://pytorch.org/get-started/locally
    """
    for (problem, severity), group in by_cause(of_the_job(recording), _broken_torch).items():
        remedy = wording.anew("Install torch anew here, or run the doctor with the job's Python", "torch")
        title, saw = (
            f"torch is broken on {{who}}: {problem}",
            Evidence(text=problem, expected_from="importing torch"),
        )
        detail = "Ranks fail where they import torch, or later where two versions meet."
        yield proved(of_nodes(recording, group), title, saw, remedy, detail=detail, severity=severity)


def _broken_torch(fact: Software) -> tuple[str, Severity] | None:
    if fact.torch_problem:
        return fact.torch_problem, Severity.ERROR
    files, metadata = fact.torch_version, fact.torch_metadata_version
    if files is None or metadata is None or release(files) == release(metadata):
        return None
    return f"its files are of {files}, its package metadata of {metadata}", Severity.WARNING


@rule("DD202", "torch-or-python-too-old", Severity.WARNING, Software)
def torch_or_python_too_old(recording: Recording) -> Iterator[Draft]:
    """A torch that the doctor was never tested with, or a Python that is no longer supported.

    What it finds
        torch below 2.4; an error where Python is older than torch's metadata demands; information where
        Python's security support has ended.

    Why it matters
        An older torch lacks what the doctor calls, so a finding may be the doctor's own fault. torch does not
        import under an older Python, and brings no new releases for one that has ended.

    Remedy
        Upgrade torch, or make the environment anew with a newer Python.

    References
        https://devguide.python.org/versions
    """
    for old, group in by_cause(of_the_job(recording), lambda fact: _too_old(fact, recording)).items():
        title, newer = f"{old.what} on {{who}} is too old: {old.why}", wording.anew("Move to a newer one")
        detail, saw = (
            "New releases pass it by, and nobody tests them with it.",
            Evidence(text=old.what, expected_from=old.source),
        )
        yield proved(of_nodes(recording, group), title, saw, newer, detail=detail, severity=old.severity)


def _too_old(fact: Software, recording: Recording) -> versions.TooOld | None:
    return versions.too_old(fact.python, fact.torch_version, fact.torch_requires_python, recording.started_at)


@rule("DD210", "torch-finds-no-backend", Severity.ERROR, Software)
def torch_finds_no_backend(recording: Recording) -> Iterator[Draft]:
    """A torch that looks its backends up in package metadata which is not there.

    What it finds
        torch's source looks for backends, gloo and NCCL too, among the entry points of installed packages (2.15 and
        newer), and no package offers gloo: torch was copied or put on PYTHONPATH without its torch-*.dist-info folder.

    Why it matters
        init_process_group fails on every rank with "Unknown c10d backend type GLOO", though torch imports and computes.

    Remedy
        Install torch with pip, or copy its .dist-info folder with it.

    References
        torch 2.15 torch/distributed/distributed_c10d.py, Backend._ensure_backend_registered
    """
    for folder, group in by_cause(of_the_job(recording), folder_without_backends).items():
        remedy = wording.anew(
            "Install torch with pip, or copy its torch-*.dist-info folder beside it", "torch"
        )
        title = "torch on {who} finds no backend, neither gloo nor NCCL: its package metadata is missing"
        saw = Evidence(
            text=f"{folder} looks for entry points torch.distributed.backends, and no package has one called gloo",
            expected_from="torch/distributed/distributed_c10d.py",
        )
        detail = 'Ranks fail in init_process_group with "Unknown c10d backend type".'
        yield proved(of_nodes(recording, group), title, saw, remedy, detail=detail)
