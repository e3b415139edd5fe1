"""DD227: hosts that something slows."""

from collections.abc import Iterator

from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, LOAD, proved
from ddp_doctor.wording.nodes import by_cause, host, name_list, of_nodes


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
    fast_clocks = [node for node in recording.facts(Host) if _slow_clock(node.fact) is None]
    busy = [node for node in fast_clocks if node.fact.load_per_cpu > thresholds.LOAD_PER_CPU]
    if busy:
        fact, load = busy[0].fact, "more than two processes for each CPU ran or waited for one"
        if len(busy) == 1:
            load = f"load {fact.load_1min or 0:.3g} on {fact.host_cpus or fact.cpus} CPUs"
        yield proved(
            of_nodes(recording, busy),
            f"Measurements on {{who}} may come out too slow: {load}",
            [_busiest(recording, node) for node in busy[:LINES_OF_EVIDENCE]],
            detail=detail,
        )


def _slow_clock(fact: Host) -> str | None:
    return fact.clock_source if fact.clock_source in thresholds.SLOW_CLOCK_SOURCES else None


def _busiest(recording: Recording, node: FactAt[Host]) -> Evidence:
    names = [f"{each.name} (pid {each.pid}, {each.cpus:.2g} CPUs)" for each in node.fact.busiest]
    at = f" on {host(recording, node.node)}" if recording.world and recording.world.nnodes > 1 else ""
    return Evidence(
        text=f"busiest{at}: {name_list(names)}" if names else f"in the last minute{at}",
        value=round(node.fact.load_per_cpu, 1),
        unit=LOAD,
        expected_from=f"a load of {thresholds.LOAD_PER_CPU:g} for each CPU at most",
    )
