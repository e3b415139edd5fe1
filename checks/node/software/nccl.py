"""DD205-DD207: an NCCL that torch was not built with, that has a known fault, or that does not load."""

from collections.abc import Iterator

from ddp_doctor.checks.node.software import wording
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge import versions
from ddp_doctor.knowledge.versions import dotted, release
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.software import of_the_job, other_nccl, with_gpus
from ddp_doctor.wording.findings import finding, proved
from ddp_doctor.wording.nodes import by_cause, of_nodes


@rule("DD205", "nccl-differs-from-torch", Severity.WARNING, Software)
def nccl_differs_from_torch(recording: Recording) -> Iterator[Draft]:
    """torch would load another NCCL than the one it was built with.

    What it finds
        The version that the loaded libnccl.so.2 itself reports is not the one pinned in torch's metadata. An
        error where it is older in its first two numbers, information where it is newer.

    Why it matters
        torch calls functions that an older NCCL lacks, and fails with "undefined symbol". An older patch
        brings mended hangs back. A newer one keeps the interface, but this pair was never tested.

    Remedy
        Reinstall the NCCL that torch pins, or take the other copy out of LD_LIBRARY_PATH and LD_PRELOAD.

    References
        https://docs.nvidia.com/deeplearning/nccl/release-notes
    """
    for (loaded, needed, library, cuda), group in by_cause(of_the_job(recording), other_nccl).items():
        title = f"torch would load NCCL {loaded} on {{who}}, but was built with {needed}"
        by = group[0].fact.nccl_brought_by
        text = f"{library} is of version {loaded}" + (f", brought by {by}" if by else "")
        saw = Evidence(text=text, expected_from=f"torch's package metadata pins {needed}")
        severity, remedy = (
            versions.nccl_mismatch(release(loaded), release(needed)),
            wording.nccl(cuda, needed),
        )
        detail = "An older NCCL lacks what torch calls; a newer one was never tested with this torch."
        yield proved(of_nodes(recording, group), title, saw, remedy, detail=detail, severity=severity)


@rule("DD206", "nccl-with-known-fault", Severity.WARNING, Software)
def nccl_with_known_fault(recording: Recording) -> Iterator[Draft]:
    """An NCCL release with a known fault that hangs DDP jobs or corrupts their data.

    What it finds
        The loaded NCCL is in the range of a fault, told by NVIDIA's release notes or torch's tracker, that a
        plain DDP job of this shape (nodes, architecture, torch release) can meet.

    Why it matters
        Such hangs come at random after hours, and such corruption is silent.

    Remedy
        Upgrade to a torch that bundles a mended NCCL; some faults are avoided by a setting.

    References
        https://docs.nvidia.com/deeplearning/nccl/release-notes
    """
    nnodes = recording.world.nnodes if recording.world else 1
    for (nccl, torch, machine), group in by_cause(with_gpus(recording), _nccl_in_use).items():
        for issue in versions.nccl_issues(release(nccl), release(torch), machine, nnodes):
            title = f"NCCL {nccl} on {{who}} {issue.effect}"
            detail = f"Known of NCCL {dotted(issue.since)} to before {dotted(issue.before)}; not every job meets it."
            saw, remedies = (
                Evidence(text=f"NCCL {nccl} with torch {torch}", expected_from=issue.source),
                wording.without(issue),
            )
            maybe = Confidence.POSSIBLE
            yield finding(of_nodes(recording, group), title, saw, *remedies, confidence=maybe, detail=detail)


def _nccl_in_use(fact: Software) -> tuple[str, str, str] | None:
    return (fact.nccl_loaded, fact.torch_version or "", fact.machine) if fact.nccl_loaded else None


@rule("DD207", "nccl-library-unusable", Severity.ERROR, Software)
def nccl_library_unusable(recording: Recording) -> Iterator[Draft]:
    """torch needs libnccl.so.2, which is missing or does not load.

    What it finds
        The dynamic linker finds no libnccl.so.2 for torch's CUDA library, and no copy lies where the wheels
        put it; or the file it finds cannot be loaded, or crashes when asked for its version.

    Why it matters
        Importing torch fails on every rank of the node: "libnccl.so.2: cannot open shared object file".

    Remedy
        Reinstall the nvidia-nccl package that torch pins.

    References
        https://pypi.org/project/nvidia-nccl-cu12
    """
    for fault, group in by_cause(of_the_job(recording), lambda fact: fact.nccl_fault).items():
        remedy = wording.nccl(group[0].fact.torch_cuda, group[0].fact.nccl_required_by_torch)
        title, saw = (
            f"torch cannot load NCCL on {{who}}: {fault}",
            Evidence(text=fault, expected_from="ldd of libtorch_cuda.so"),
        )
        detail = "libtorch_cuda.so is linked with libnccl.so.2, so importing torch fails on every rank."
        yield proved(of_nodes(recording, group), title, saw, remedy, detail=detail)
