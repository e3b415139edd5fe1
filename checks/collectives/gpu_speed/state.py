"""A GPU under load beside its peers: in words, and what mends what differs."""

from collections.abc import Iterator, Sequence
from statistics import median_low

from ddp_doctor.checks.collectives.gpu_speed import wording
from ddp_doctor.checks.collectives.gpu_speed.comparable import Measured, judged, model, rank_of
from ddp_doctor.facts.collectives import GpuLoad
from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.model.finding import Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.gpus import LINES_OF_EVIDENCE
from ddp_doctor.wording.ranks import rank_at


def evidence(
    recording: Recording, gpus: Sequence[Measured], besides: Sequence[Measured]
) -> Iterator[Evidence]:
    """One line a GPU, beside the typical GPU of its model without those of ``besides``."""
    usual = _usual(recording, besides)
    for seen in gpus[:LINES_OF_EVIDENCE]:
        text = f"{rank_at(recording, rank_of(seen))} under load: {_in_words(seen.fact.load, usual)}"
        yield Evidence(text=text)


def remedies(recording: Recording, gpus: Sequence[Measured]) -> tuple[Remedy, ...]:
    """By what differs from the others of the model; where nothing does, what to compare."""
    usual, found = _usual(recording, gpus), []
    for seen in gpus[:LINES_OF_EVIDENCE]:
        load, uuid = seen.fact.load, seen.fact.gpu_uuid
        own_w, peers_w = load.power_limit_w, usual.power_limit_w
        if own_w and peers_w and _is_lower(own_w, peers_w, gpu_speed.POWER_LIMIT_LOWER_SHARE):
            found.append(wording.raise_power_limit(uuid, own_w, peers_w))
        due_mhz = usual.sm_clock_mhz or load.sm_clock_max_mhz
        if "applications_clocks_setting" in load.clock_events and _is_lower(
            load.sm_clock_mhz, due_mhz, gpu_speed.SLOWER_SHARE
        ):
            found.append(wording.free_clocks(uuid))
    return tuple(found) or (wording.COMPARE,)


def _is_lower(own: float | None, usual: float | None, share: float) -> bool:
    return own is not None and usual is not None and own <= usual * (1 - share)


def _usual(recording: Recording, besides: Sequence[Measured]) -> GpuLoad:
    """The medians of the others of the model."""
    out = {rank_of(seen) for seen in besides}
    others = [
        seen for seen in judged(recording) if rank_of(seen) not in out and model(seen) == model(besides[0])
    ]
    clocks = [seen.fact.load.sm_clock_mhz for seen in others if seen.fact.load.sm_clock_mhz is not None]
    limits = [seen.fact.load.power_limit_w for seen in others if seen.fact.load.power_limit_w is not None]
    return GpuLoad(
        sm_clock_mhz=median_low(clocks) if clocks else None,
        power_limit_w=median_low(limits) if limits else None,
    )


def _in_words(load: GpuLoad, usual: GpuLoad) -> str:
    """ "SM clock 1095 of 1980 MHz (others 1560), 349 of 350 W (others' limit 700), 51 °C, sw_power_cap"."""
    if load.reason is not None:
        return f"the driver told nothing ({load.reason})"
    parts = []
    if load.sm_clock_mhz is not None:
        others = f" (others {usual.sm_clock_mhz})" if usual.sm_clock_mhz is not None else ""
        parts.append(f"SM clock {_of(load.sm_clock_mhz, load.sm_clock_max_mhz)} MHz{others}")
    if load.power_w is not None:
        others = f" (others' limit {usual.power_limit_w:.0f})" if usual.power_limit_w is not None else ""
        parts.append(f"{_of(load.power_w, load.power_limit_w)} W{others}")
    if load.temperature_c is not None:
        parts.append(f"{load.temperature_c} °C")
    parts.append(", ".join(sorted(load.clock_events)) or "nothing holds its clocks down")
    return ", ".join(parts)


def _of(value: float, most: float | None) -> str:
    return f"{value:.0f}" if most is None else f"{value:.0f} of {most:.0f}"
