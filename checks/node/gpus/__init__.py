"""GPUs: what the driver's management library (NVML) reports, compared with the GPUs the machine should have.

DDP needs one whole, healthy, free GPU per rank. A GPU that is lost, hot, in use or missing stops the job in its first
minute, or slows every rank down. The raw input comes from sources/child_nvml.py, a separate process because a broken
driver hangs its callers. It is compared with the output of probing/host_gpus.py:

    {"error": null, "driver_version": "550.90.07", "gpus": [{"index": 3, "uuid": "GPU-8932f933-…",
     "bus_id": "00000000:61:00.0", "ecc_volatile_uncorrected": 2, "memory_used_bytes": 4194304, …}]}
    /sys/bus/pci/devices/0000:61:00.0/{vendor: 0x10de, class: 0x030200, driver -> …/nvidia}
    SLURM_JOB_GPUS=0,1,2,3   NVIDIA_VISIBLE_DEVICES=GPU-8932f933-…   CUDA_VISIBLE_DEVICES=0,1

A container sees the host's PCI bus without owning its GPUs, so only granted GPUs count there. One finding lists all
GPUs with the same fault. AMD GPUs and other accelerators are not supported yet: if the job would use them, the reading
fails and the verdict is unsure (checks/node/gpus/accelerators.py).
"""

from ddp_doctor.checks.node.gpus import accelerators, condition, driver, inventory, peers, use
from ddp_doctor.checks.node.gpus.accelerators import NvmlAnswer, parse_nvml
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent, Failed, TookTooLong
from ddp_doctor.model.rule import rules_in
from ddp_doctor.parse import visible_devices
from ddp_doctor.probing import host_gpus
from ddp_doctor.probing.kernel_files import first_line


def probe(ctx: Context) -> GpusFact:
    """Ask NVML in a separate process. Raises Absent only if no GPU is expected or granted.

    Raises Failed if the job would use accelerators of another vendor, which this check does not support.
    """
    pci = host_gpus.pci_gpus(ctx)
    answer = _ask(ctx, thresholds.NVML_BASE_LIMIT_S + thresholds.NVML_LIMIT_PER_GPU_S * len(pci or ()))
    nodes = host_gpus.device_nodes(ctx)
    gpus = GpusFact(
        **dict(answer),
        nvml_error=answer.failure(),
        nvml_elapsed_s=answer.elapsed_s,
        kernel_module=first_line(ctx, "/proc/driver/nvidia/version"),
        pci_gpus=pci,
        device_nodes=nodes,
        fabric_manager=host_gpus.fabric_manager_runs(ctx, nodes),
        in_container=host_gpus.in_container(ctx),
    )
    fact = gpus.model_copy(update=visible_devices.job_view(gpus.gpus, ctx.env, in_container=gpus.in_container))
    lent = fact.in_the_machine() and (fact.in_container or _is_without_grant(fact))
    if not (fact.gpus or answer.error == "timed_out" or fact.gpus_expected() or fact.has_grant() or lent):
        return _of_other_makers(ctx, fact)
    return fact


def _of_other_makers(ctx: Context, fact: GpusFact) -> GpusFact:
    """Return the fact with GPUs that a setting hides. Raises Failed for unsupported GPUs, Absent without any."""
    if not _is_without_grant(fact):
        if (others := accelerators.unsupported(ctx)) is not None:
            raise Failed(f"ddp-doctor does not support this hardware yet: {others}")
        if (others := accelerators.hidden(ctx)) is not None:
            hiding = {"others_hidden": others, "others_hidden_by": accelerators.hiding(ctx)}
            return fact.model_copy(update={**hiding, "nvml_error": None})
    raise Absent(_absence(fact))


def _ask(ctx: Context, limit_s: float) -> NvmlAnswer:
    """Return the child's answer, even if the driver kills or hangs it. Raises if the child never reached NVML."""
    result = ctx.child("nvml", f"{max(min(limit_s, ctx.deadline - ctx.clock() - 1.0), 0.1):.1f}")
    ctx.keep(result.stdout or result.stderr)
    try:
        answer = parse_nvml(result.stdout)
    except ValueError:
        if result.returncode is not None and result.returncode < 0:
            return NvmlAnswer(error="crashed", text=f"ended by signal {-result.returncode}")
        if result.status == "timed_out":
            raise TookTooLong("the program that queries NVML timed out without output") from None
        last = result.stderr.strip().rpartition("\n")[2]
        raise Failed(f"the program that queries NVML gave no answer: {last or result.status}") from None
    if answer.error == "pynvml_missing":
        raise Failed(f"cannot import pynvml in ddp-doctor's Python: {answer.text}; install nvidia-ml-py in that Python")
    if answer.error == "timed_out" and not answer.call:
        raise TookTooLong("the program that queries NVML timed out before it reached the driver")
    return answer


def _is_without_grant(fact: GpusFact) -> bool:
    """Return True for a SLURM step without granted GPUs: the machine's GPUs are then irrelevant to it."""
    return "SLURM_PROCID" in fact.environment and not fact.granted


def _absence(fact: GpusFact) -> str:
    if fact.pci_gpus and all(gpu.passed_through for gpu in fact.pci_gpus):
        return f"all {len(fact.pci_gpus)} NVIDIA GPUs are set aside for virtual machines (vfio-pci)"
    if fact.pci_gpus:
        here = "container" if fact.in_container else "SLURM step"
        return f"no NVIDIA GPU was given to this {here}; the machine has {len(fact.pci_gpus)}"
    bus = "the PCI bus cannot be read" if fact.pci_gpus is None else "no NVIDIA PCI device (vendor 10de)"
    driver = "no driver" if fact.nvml_error else "the driver lists none"
    return f"no NVIDIA GPU found: {bus}, {driver}"


CHECK = Check(
    id="gpus",
    title="GPUs and their driver",
    where=Where.NODE,
    probe=probe,
    facts=(GpusFact,),
    rules=rules_in(condition, driver, inventory, use, peers),
    decides_world=(
        driver.nvidia_driver_not_working,
        driver.nvidia_driver_hangs,
        inventory.gpus_missing,
        inventory.job_sees_too_few_gpus,
    ),
    cost_s=0.3,
    is_essential=True,
    deadline_s=60.0,
)
