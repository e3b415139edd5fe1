"""DD227: hosts that something slows."""

from collections.abc import Iterator

from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import LOAD, proved
from ddp_doctor.wording.nodes import by_cause, host, name_list, of_nodes

#: Of many busy nodes the evidence shows the first.
_NODES_SHOWN = 16


@rule("DD227", "slow-clock-or-busy-host", Severity.INFO, Host)
def slow_clock_or_busy_host(recording: Recording) -> Iterator[Draft]:
    """Something slows the whole host: a slow clock source, or a high load.

    Finds: hpet, acpi_pm or a timer tick as the clock source; a load of more than two for each CPU, with the two
        processes that took most of them, by name and pid. On a screen a load is told beside a time that was judged,
        else with -v.
    Why: Measurements are off. A slow clock takes microseconds to read instead of some 20 ns, and the kernel turns to it
        when it finds the processor's counter unstable.
    Remedy: See in the kernel log why tsc was given up ("Marking clocksource unstable"); end what keeps the CPUs busy.
    See: https://docs.kernel.org/timers/timekeeping.html
    """
    detail = "What is measured here may be slower than the job will be."
    for source, group in by_cause(recording.facts(Host), _slow_clock).items():
        yield proved(
            of_nodes(recording, group),
            f"Measurements on {{who}} may come out too slow: reading the clock takes long (clock source {source})",
            Evidence(text=f"clock source {source}", expected_from="tsc or a virtual clock"),
            detail=detail,
        )
    busy = [node for node in recording.facts(Host) if _slow_clock(node.fact) is None and _is_busy(node.fact)]
    if busy:
        load = _load(busy[0].fact) if len(busy) == 1 else "more than two processes for each CPU ran or waited for one"
        yield proved(
            of_nodes(recording, busy),
            f"Measurements on {{who}} may come out too slow: {load}",
            [_busiest(recording, node) for node in busy[:_NODES_SHOWN]],
            detail=detail,
        )


def _slow_clock(fact: Host) -> str | None:
    return fact.clock_source if fact.clock_source in thresholds.SLOW_CLOCK_SOURCES else None


def _is_busy(fact: Host) -> bool:
    return fact.load_per_cpu > thresholds.LOAD_PER_CPU


def _load(fact: Host) -> str:
    return f"load {fact.load_1min or 0:.3g} on {fact.host_cpus or fact.cpus} CPUs"


def _busiest(recording: Recording, node: FactAt[Host]) -> Evidence:
    names = [f"{each.name} (pid {each.pid}, {each.cpus:.2g} CPUs)" for each in node.fact.busiest]
    at = f" on {host(recording, node.node)}" if recording.world and recording.world.nnodes > 1 else ""
    return Evidence(
        text=f"busiest{at}: {name_list(names)}" if names else f"in the last minute{at}",
        value=round(node.fact.load_per_cpu, 1),
        unit=LOAD,
        expected_from=f"a load of {thresholds.LOAD_PER_CPU:g} for each CPU at most",
    )
