"""DD208, DD209: several copies of libnccl: two packages that write one file, and one that is never loaded."""

import posixpath
from collections.abc import Iterator

from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge import versions
from ddp_doctor.knowledge.versions import dotted, release
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.settings.wording import printable
from ddp_doctor.views.software import of_the_job
from ddp_doctor.wording.findings import finding, proved
from ddp_doctor.wording.nodes import by_cause, of_nodes


@rule("DD208", "nccl-packages-overwrite-each-other", Severity.WARNING, Software)
def packages_overwrite(recording: Recording) -> Iterator[Draft]:
    """Two NCCL packages, for two versions of CUDA, that write the same file.

    What it finds
        nvidia-nccl-cu12 and nvidia-nccl-cu13 (or cu11) are both installed; the one that pip wrote last is there, told
        by its size. An error where that one is for a CUDA that the driver is too old for; information where it is the
        one for torch's own CUDA.

    Why it matters
        Both write nvidia/nccl/lib/libnccl.so.2. The next `pip install` decides anew which NCCL every job loads, and
        uninstalling either deletes it for both. NCCL for CUDA 13 fails on a driver before 580.

    Remedy
        Uninstall the one that torch does not ask for, then write the other anew.

    References
        https://pypi.org/project/nvidia-nccl-cu12
    """
    for (packages, there, cuda), group in by_cause(of_the_job(recording), _overwritten).items():
        fact = group[0].fact
        own = _own_package(cuda)
        wrong = [name for name in packages if name != own]
        written = f"the file is {there}'s" if there else "the file is of neither's size"
        saw = Evidence(
            text=f"{' and '.join(packages)} are installed; {written}",
            expected_from="the RECORD of each package",
        )
        yield finding(
            of_nodes(recording, group),
            f"{' and '.join(packages)} on {{who}} overwrite each other's libnccl.so.2",
            saw,
            _one_only(wrong, own, fact.nccl_required_by_torch),
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


def _one_only(wrong: list[str], own: str, version: str | None) -> Remedy:
    pinned = own + (f"=={version}" if version else "")
    return remedy(
        f"Uninstall {' and '.join(wrong)}, then write {pinned} anew",
        f"python -m pip uninstall -y {' '.join(wrong)}",
        f"python -m pip install --force-reinstall --no-deps {pinned}",
        scope="job",
        cost="changes the environment of every job that uses it; what asked for the other package loses it",
        undo="install the other package again",
        untried="the doctor changes no installation",
    )


@rule("DD209", "nccl-copy-without-effect", Severity.INFO, Software)
def copy_without_effect(recording: Recording) -> Iterator[Draft]:
    """LD_LIBRARY_PATH or LD_PRELOAD names a libnccl that torch does not load.

    What it finds
        A copy of libnccl.so.2 in a folder of LD_LIBRARY_PATH, or in LD_PRELOAD, while the linker gives torch
        another: the RPATH of torch's wheels comes before LD_LIBRARY_PATH. Or torch has NCCL built in, and loads none.

    Why it matters
        Whoever set it to try another NCCL measures the old one. Programs without that RPATH, such as
        nccl-tests, do load it, and so cannot be compared with torch.

    Remedy
        Put the file into LD_PRELOAD where another NCCL is wanted; else nothing needs to be done.

    References
        man 8 ld.so
    """
    for (file, by, loaded), group in by_cause(of_the_job(recording), _unused_copy).items():
        instead = f"{loaded} is loaded" if loaded else "NCCL is built into torch"
        yield proved(
            of_nodes(recording, group),
            f"{printable(by)} on {{who}} names a libnccl that torch does not load",
            Evidence(
                text=f"{printable(file)} lies there, and {printable(instead)}",
                expected_from="ldd of libtorch_cuda.so",
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
