"""How many GPUs a node lacks, and by whose count."""

from dataclasses import dataclass

from ddp_doctor.facts.gpus import GpusFact
from ddp_doctor.model.choices import Severity

REQUIRED = "--require-gpus"


@dataclass(frozen=True)
class Shortfall:
    """Fewer GPUs than there should be, and who says how many."""

    have: int
    expected: int
    source: str
    named: tuple[str, ...] = ()  # bus ids of the missing ones, where known
    severity: Severity = Severity.ERROR


def shortfall_of(fact: GpusFact, required: int | None) -> Shortfall | None:
    """What is missing, by the surest count; None where NVML fails as a whole, as DD301 and DD302 say."""
    if fact.nvml_error is not None:
        return None
    have = sum(gpu.error != "no_permission" for gpu in fact.gpus)
    unlisted = fact.unlisted()
    if unlisted:
        return Shortfall(have, have + len(unlisted), "the PCI bus", unlisted)
    sliced = any(gpu.mig_enabled for gpu in fact.gpus)  # a grant then counts slices
    if fact.is_owed() and not sliced and have < (fact.granted or 0):
        return Shortfall(have, fact.granted or 0, "the scheduler's grant")
    if required is not None and len(fact.visible) < required:
        return Shortfall(len(fact.visible), required, REQUIRED)
    unbound = tuple(gpu.bus_id for gpu in fact.due() if gpu.driver is None)
    if unbound:
        return Shortfall(have, have + len(unbound), "the PCI bus", unbound, Severity.WARNING)
    return None
