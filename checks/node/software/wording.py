"""Remedies that install something: which package, from which index, for this driver and CUDA."""

from collections.abc import Iterator

from ddp_doctor.knowledge.versions import NcclIssue, dotted, first_torch_with, release, wheel_index
from ddp_doctor.model.finding import Proof, Remedy, Setting
from ddp_doctor.remedies.kinds import remedy


def anew(summary: str, *packages: str) -> Remedy:
    """Install these packages into the job's environment; without packages the words alone."""
    command = " ".join(("python -m pip install --force-reinstall", *packages))
    return remedy(
        summary,
        *((command,) if packages else ()),
        scope="job",
        cost="changes the environment of every job that uses it",
        undo="install the former version again",
        untried="the doctor changes no installation",
    )


def cuda_build(driver: str) -> Remedy:
    """A torch built with the newest CUDA that the driver runs."""
    index = wheel_index(release(driver))
    if index is None:
        return driver_upgrade(f"Upgrade the driver: {driver} is too old for every CUDA build of torch")
    source = f"torch --index-url https://download.pytorch.org/whl/{index}"
    return anew(f"Install a torch built with a CUDA that driver {driver} runs ({index})", source)


def driver_upgrade(summary: str) -> Remedy:
    """A newer driver, which is the administrator's business."""
    return remedy(
        summary,
        cost="the node must be drained",
        undo="install the former driver again",
        untried="the doctor changes no installation",
    )


def nccl(torch_cuda: str | None, version: str | None) -> Remedy:
    """The NCCL package for torch's CUDA, in the version that torch pins where it pins one."""
    major = (release(torch_cuda or "") or (12,))[0]
    package = f"nvidia-nccl-cu{major}" + (f"=={version}" if version else "")
    return anew(f"Reinstall {package}; keep other copies out of LD_LIBRARY_PATH and LD_PRELOAD", package)


def without(issue: NcclIssue) -> Iterator[Remedy]:
    """How to avoid a fault of NCCL: the setting where there is one, and the upgrade."""
    if issue.setting:
        name, value = issue.setting
        yield Remedy(
            summary=f"Set {name}={value}",
            settings=(Setting(name=name, value=value, why=f"otherwise NCCL {issue.effect}"),),
            cost="may be slower",
            undo=f"unset {name}",
            proof=Proof(reason="a short trial cannot show that a fault which comes at random is gone"),
            references=(issue.source,),
        )
    torch = issue.torch_before or first_torch_with(issue.before)
    if torch:
        yield anew(f"Upgrade torch to {dotted(torch)} or newer", f"'torch>={dotted(torch)}'")
