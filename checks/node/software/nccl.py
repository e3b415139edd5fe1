"""DD205-DD209: an NCCL that torch was not built with, that has a known fault, is unusable, or has several copies."""

import posixpath
from collections.abc import Iterator

from ddp_doctor.checks.node.software import installation
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge import versions
from ddp_doctor.knowledge.versions import dotted, release
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_installation, remedy
from ddp_doctor.settings.wording import printable
from ddp_doctor.views.software import of_the_job, other_nccl, with_gpus
from ddp_doctor.wording.findings import finding, possible, proved
from ddp_doctor.wording.nodes import by_cause, of_nodes


@rule("DD205", "nccl-differs-from-torch", Consequence.RISK, Software)
def nccl_differs_from_torch(recording: Recording) -> Iterator[Draft]:
    """torch would load a different NCCL than the version it was built with.

    Finds: The version that the loaded libnccl.so.2 reports differs from the version pinned in torch's metadata. An
        error if its first two numbers are older, information if it is newer.
    Why: torch calls functions that an older NCCL lacks, and fails with "undefined symbol". An older patch has hangs
        that the pinned one fixes. A newer one keeps the interface, but this pair was never tested.
    Remedy: Reinstall the NCCL that torch pins, or remove the other copy from LD_LIBRARY_PATH and LD_PRELOAD.
    See: https://docs.nvidia.com/deeplearning/nccl/release-notes
    """
    for (loaded, needed, library, cuda), group in by_cause(of_the_job(recording), other_nccl).items():
        by = group[0].fact.nccl_brought_by
        text = f"{library} has version {loaded}" + (f", brought by {by}" if by else "")
        yield proved(
            of_nodes(recording, group),
            f"torch on {{who}} loads NCCL {loaded}, but was built with {needed}",
            Evidence(text=text, expected_from=f"torch's package metadata pins {needed}"),
            _without(by) if by else installation.nccl_package(cuda, needed),
            detail="An older NCCL lacks functions that torch calls. A newer NCCL was never tested with this torch.",
            severity=versions.nccl_mismatch(release(loaded), release(needed)),
        )


def _without(brought_by: str) -> Remedy:
    name, _, entry = brought_by.partition("=")
    return remedy(
        f"Remove {printable(entry)} from {name}, so that torch loads its own NCCL",
        scope="job",
        undo=f"restore it in {name}",
        untried="ddp-doctor does not know what else the job needs from it",
    )


@rule("DD206", "nccl-with-known-fault", Consequence.RISK, Software)
def nccl_with_known_fault(recording: Recording) -> Iterator[Draft]:
    """This NCCL release has a known fault that hangs DDP jobs or corrupts their data.

    Finds: The loaded NCCL is in the range of a fault, from NVIDIA's release notes or torch's tracker, that a plain
        DDP job of this shape (nodes, architecture, torch release) can meet.
    Why: Such hangs occur at random after hours, and such corruption is silent.
    Remedy: Upgrade to a torch that bundles a fixed NCCL; a setting avoids some faults.
    See: https://docs.nvidia.com/deeplearning/nccl/release-notes
    """
    for (nccl, torch, machine), group in by_cause(with_gpus(recording), _nccl_in_use).items():
        for issue in versions.nccl_issues(release(nccl), release(torch), machine, recording.nnodes):
            affected = f"NCCL {dotted(issue.since)} and newer, before {dotted(issue.before)}"
            yield possible(
                of_nodes(recording, group),
                f"NCCL {nccl} on {{who}} {issue.effect}",
                Evidence(text=f"NCCL {nccl} with torch {torch}", expected_from=issue.source),
                *installation.ways_around(issue),
                detail=f"A known fault of {affected}. Not every job triggers it.",
            )


def _nccl_in_use(fact: Software) -> tuple[str, str, str] | None:
    return (fact.nccl_loaded, fact.torch_version or "", fact.machine) if fact.nccl_loaded else None


@rule("DD207", "nccl-library-unusable", Consequence.FAILS, Software)
def nccl_library_unusable(recording: Recording) -> Iterator[Draft]:
    """torch needs libnccl.so.2, which is missing or does not load.

    Finds: The dynamic linker finds no libnccl.so.2 for torch's CUDA library, and no copy is where the wheels put
        it; or the file it finds cannot be loaded, or crashes when asked for its version.
    Why: Importing torch fails on every rank of the node: "libnccl.so.2: cannot open shared object file".
    Remedy: Reinstall the nvidia-nccl package that torch pins.
    See: https://pypi.org/project/nvidia-nccl-cu12
    """
    for fault, group in by_cause(of_the_job(recording), lambda fact: fact.nccl_fault).items():
        yield proved(
            of_nodes(recording, group),
            f"torch cannot load NCCL on {{who}}: {fault}",
            Evidence(text=fault, expected_from="ldd of libtorch_cuda.so"),
            installation.nccl_package(group[0].fact.torch_cuda, group[0].fact.nccl_required_by_torch),
            detail="libtorch_cuda.so is linked with libnccl.so.2, so importing torch fails on every rank.",
        )


@rule("DD208", "nccl-packages-overwrite-each-other", Consequence.RISK, Software)
def nccl_packages_overwrite_each_other(recording: Recording) -> Iterator[Draft]:
    """Two NCCL packages, for two versions of CUDA, write the same file.

    Finds: nvidia-nccl-cu12 and nvidia-nccl-cu13 (or cu11) are both installed; the file size shows which one pip
        wrote last. An error if that one is for a CUDA that the driver is too old for; information if it is for
        torch's own CUDA.
    Why: Both write nvidia/nccl/lib/libnccl.so.2. The next `pip install` decides again which NCCL every job loads,
        and uninstalling either deletes it for both. NCCL for CUDA 13 fails on a driver before 580.
    Remedy: Uninstall the package that torch does not require, then reinstall the other.
    See: https://pypi.org/project/nvidia-nccl-cu12
    """
    for (packages, there, cuda), group in by_cause(of_the_job(recording), _overwritten).items():
        fact = group[0].fact
        own = _own_package(cuda)
        wrong = [name for name in packages if name != own]
        written = f"the file is {there}'s" if there else "the file has the size of neither"
        names = " and ".join(packages)
        pinned = own + (f"=={fact.nccl_required_by_torch}" if fact.nccl_required_by_torch else "")
        yield finding(
            of_nodes(recording, group),
            f"{names} on {{who}} overwrite each other's libnccl.so.2",
            Evidence(text=f"{names} are installed; {written}", expected_from="the RECORD of each package"),
            by_installation(
                f"Uninstall {' and '.join(wrong)}, then reinstall {pinned}",
                f"python -m pip uninstall -y {' '.join(wrong)}",
                f"python -m pip install --force-reinstall --no-deps {pinned}",
                scope="job",
                cost="changes the environment of every job that uses it; removes a package that others may need",
                undo="reinstall the other package",
            ),
            confidence=Confidence.PROVED if there else Confidence.LIKELY,
            detail=f"torch's CUDA is {cuda}. The package that pip writes last wins, and removing one breaks both.",
            severity=_severity(there, own, fact),
        )


def _overwritten(fact: Software) -> tuple[tuple[str, ...], str | None, str] | None:
    packages = tuple(sorted(fact.nccl_packages))
    if len(packages) < 2 or fact.torch_cuda is None or _own_package(fact.torch_cuda) not in packages:
        return None
    fitting = [name for name, size in fact.nccl_sizes.items() if size == fact.nccl_file_bytes]
    return packages, fitting[0] if len(fitting) == 1 else None, fact.torch_cuda


def _own_package(cuda: str) -> str:
    return f"nvidia-nccl-cu{dotted(release(cuda)[:1])}"


def _severity(there: str | None, own: str, fact: Software) -> Severity | None:
    if there == own:
        return Severity.INFO
    major = (there or "").rpartition("cu")[2]
    too_old = bool(major) and fact.driver is not None and release(fact.driver) < versions.least_driver(major)
    return Severity.ERROR if too_old and not fact.forward_compatibility else None


@rule("DD209", "nccl-copy-without-effect", Consequence.NO_EFFECT, Software)
def nccl_copy_without_effect(recording: Recording) -> Iterator[Draft]:
    """LD_LIBRARY_PATH or LD_PRELOAD names a libnccl that torch does not load.

    Finds: A copy of libnccl.so.2 in a directory of LD_LIBRARY_PATH, or in LD_PRELOAD, while the linker gives torch
        another: the RPATH of torch's wheels comes before LD_LIBRARY_PATH. Or torch has NCCL built in, and loads
        none.
    Why: A test of another NCCL measures the old one instead. Programs without that RPATH, such as nccl-tests, do
        load the copy, and so cannot be compared with torch.
    Remedy: Put the file into LD_PRELOAD if you want that NCCL; otherwise, no change is needed.
    See: man 8 ld.so
    """
    for (file, by, loaded), group in by_cause(of_the_job(recording), _unused_copy).items():
        instead = f"{loaded} is loaded" if loaded else "NCCL is built into torch"
        yield proved(
            of_nodes(recording, group),
            f"torch on {{who}} does not load the libnccl of {printable(by)}",
            Evidence(
                text=f"{printable(file)} is there, but {printable(instead)}", expected_from="ldd of libtorch_cuda.so"
            ),
            detail="The RPATH of torch's own libraries comes before LD_LIBRARY_PATH.",
        )


def _unused_copy(fact: Software) -> tuple[str, str, str | None] | None:
    built_in = fact.nccl_library is None and fact.nccl_problem is not None and "built in" in fact.nccl_problem
    loaded = fact.nccl_library
    if loaded is None and not built_in:
        return None
    if loaded is not None and fact.nccl_brought_by is not None:
        return None  # one of these settings decides
    for file, by in fact.nccl_offered.items():
        if loaded is None or posixpath.normpath(file) != posixpath.normpath(loaded):
            return file, by, loaded
    return None
