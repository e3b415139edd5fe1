"""Asking this host for its topology: NVML and /sys, else nvidia-smi."""

from ddp_doctor.checks.node.topology.formats.nvml_topology import NvmlTopology, WiredGpu, parse_nvml_topology
from ddp_doctor.checks.node.topology.formats.topo_matrix import TopologyError, parse_matrix
from ddp_doctor.checks.node.topology.live_topology import Bus, live_matrix
from ddp_doctor.facts.node.topology import TopologyFact, TopologyHangFact
from ddp_doctor.model.context import CommandResult, Context
from ddp_doctor.model.fact import Absent, Failed, TookTooLong
from ddp_doctor.parse.visible_devices import job_gpus
from ddp_doctor.probing import host_gpus, pci_devices

_COMMAND = "nvidia-smi topo -m"


class CannotAsk(Exception):
    """NVML cannot be asked here, or tells of no GPU; the message says why."""


def ask_nvml(ctx: Context, limit_s: float) -> TopologyFact | TopologyHangFact:
    """What NVML and /sys tell. Raises CannotAsk."""
    left_s = ctx.deadline - ctx.clock() - 1.0
    result = ctx.child("nvml_topology", f"{max(min(limit_s, left_s), 0.1):.1f}")
    try:
        answer = parse_nvml_topology(result.stdout)
    except ValueError:
        if result.status == "timed_out":
            raise TookTooLong("the program that asks NVML did not end in time, and said nothing") from None
        raise CannotAsk(f"the program that asks NVML gave no answer: {_last_line(result)}") from None
    ctx.keep(result.stdout)
    if answer.error == "timed_out" and answer.call:
        return TopologyHangFact(asked="NVML", call=answer.call, gpu=answer.gpu, waited_s=answer.elapsed_s)
    if not answer.ours():
        errors = [answer.error, *(gpu.error for gpu in answer.gpus)]
        why = ", ".join(dict.fromkeys(error for error in errors if error)) or "NVML lists no GPU"
        raise CannotAsk(f"{answer.call or 'NVML'}: {why} {answer.text}".rstrip())
    return _fact(ctx, answer)


def _last_line(result: CommandResult) -> str:
    return result.stderr.strip().rpartition("\n")[2][:200] or result.status


def _fact(ctx: Context, answer: NvmlTopology) -> TopologyFact:
    bus = _bus(ctx, answer.ours())
    try:
        matrix = live_matrix(answer, bus)
    except LookupError as error:
        raise Failed(str(error)) from None
    nics = {device.bus_id for device in bus.nics.values()}
    others = [device for device in pci_devices.net_devices(ctx) if device.bus_id not in nics]
    return TopologyFact(
        **dict(matrix),
        source="nvml",
        pci=(*bus.gpus.values(), *bus.nics.values(), *others),
        pci_links=answer.pci_codes(),
        p2p=answer.p2p_words(),
        nvlinks=answer.nvlinks(),
        mig_gpus=tuple(gpu.column for gpu in answer.ours() if gpu.mig_enabled),
        near_cpus=_near_cpus(ctx, bus),
        allowed_cpus=_allowed_cpus(ctx),
        job_gpus=tuple(gpu.column for gpu in job_gpus(answer.ours(), ctx.env)),
    )


def _bus(ctx: Context, gpus: tuple[WiredGpu, ...]) -> Bus:
    seen = {gpu.column: pci_devices.gpu_device(ctx, gpu.column, gpu.bus_id) for gpu in gpus if gpu.bus_id}
    return Bus(
        gpus={name: device for name, device in seen.items() if device},
        nics=pci_devices.rdma_devices(ctx),
    )


def _near_cpus(ctx: Context, bus: Bus) -> dict[str, str]:
    lists = {name: pci_devices.near_cpus(ctx, device.bus_id) for name, device in bus.gpus.items()}
    return {name: cpus for name, cpus in lists.items() if cpus}


def _allowed_cpus(ctx: Context) -> str | None:
    """``Cpus_allowed_list:\t0-15`` of this process."""
    try:
        lines = ctx.read("/proc/self/status").splitlines()
    except OSError:
        return None
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("Cpus_allowed_list:"))
    return next(found, None)


def ask_nvidia_smi(ctx: Context, limit_s: float, why_not_nvml: str) -> TopologyFact | TopologyHangFact:
    """The matrix that nvidia-smi prints. Raises where it prints none."""
    started = ctx.clock()
    result = ctx.run(_COMMAND.split(), limit_s)
    if result.status == "missing":
        why = f"NVML gives no topology ({why_not_nvml}), and nvidia-smi is not installed here"
        raise Failed(why) if host_gpus.gpu_is_given(ctx) else Absent(why)
    raw = result.stdout + result.stderr
    ctx.keep(raw)
    if result.status == "timed_out":
        return TopologyHangFact(asked="nvidia-smi", call=_COMMAND, waited_s=ctx.clock() - started)
    try:
        return TopologyFact(**dict(parse_matrix(raw)), source="nvidia-smi")
    except TopologyError as error:
        said = next((line.strip()[:200] for line in raw.splitlines() if line.strip()), "nothing")
        if not host_gpus.gpu_is_due(ctx):
            raise Absent(f"there is no NVIDIA GPU here; nvidia-smi says: {said}") from None
        raise Failed(f"{_COMMAND} gave no topology ({error}); it says: {said}") from None
