"""Facts of traces made by hand: ranks that compute, meet in one all-reduce a step, and wait for the last."""

from collections.abc import Callable, Sequence
from typing import Any

from ddp_doctor.features.trace.facts import TraceCall, TraceFact, TraceStep
from ddp_doctor.model.recording import Options, Recording
from tests.readings import collected

TRANSFER_US = 2_000.0


def job(
    computing: Sequence[Sequence[float]], *, first: int = 3, device: str = "cpu", **fields: Any
) -> tuple[TraceFact, ...]:
    steps: list[list[TraceStep]] = [[] for _ in computing]
    calls: list[list[TraceCall]] = [[] for _ in computing]
    now = [0.0] * len(computing)
    for index in range(len(computing[0])):
        came = [now[rank] + computing[rank][index] for rank in range(len(computing))]
        end = max(came) + TRANSFER_US
        for rank, arrived in enumerate(came):
            busy = computing[rank][index]
            steps[rank].append(
                TraceStep(
                    number=first + index,
                    begin_us=now[rank],
                    end_us=end,
                    compute_us=busy,
                    exposed_us=end - arrived,
                    exposed=((arrived, end),),
                    ops=100,
                    op_us=busy,
                    batch=(64, 512),
                )
            )
            calls[rank].append(
                TraceCall(kind="all_reduce", begin_us=arrived, end_us=end, called_us=arrived, step=index, size_bytes=4)
            )
        now = [end] * len(computing)
    return tuple(
        TraceFact(
            file=f"rank{rank}.json.gz",
            rank=rank,
            world_size=len(computing),
            device=device,  # type: ignore[arg-type]
            marked_by="profiler",
            steps=tuple(steps[rank]),
            calls=tuple(calls[rank]),
            **fields,
        )
        for rank in range(len(computing))
    )


def of_rank(ranks: Sequence[TraceFact], number: int, /, **fields: Any) -> tuple[TraceFact, ...]:
    return tuple(fact.model_copy(update=fields) if fact.rank == number else fact for fact in ranks)


def with_steps(
    ranks: Sequence[TraceFact], rank: int, change: Callable[[TraceStep], dict[str, Any]]
) -> tuple[TraceFact, ...]:
    [fact] = [fact for fact in ranks if fact.rank == rank]
    return of_rank(ranks, rank, steps=tuple(step.model_copy(update=change(step)) for step in fact.steps))


def moved(fact: TraceFact, by: float = 0.0, times: float = 1.0) -> TraceFact:
    """The same by a clock that is off, or runs faster."""

    def at(moment: float) -> float:
        return moment * times + by

    steps = tuple(
        step.model_copy(
            update={
                "begin_us": at(step.begin_us),
                "end_us": at(step.end_us),
                "exposed_us": step.exposed_us * times,
                "compute_us": step.compute_us * times,
                "exposed": tuple((at(begin), at(end)) for begin, end in step.exposed),
            }
        )
        for step in fact.steps
    )
    calls = tuple(
        call.model_copy(
            update={"begin_us": at(call.begin_us), "end_us": at(call.end_us), "called_us": at(call.called_us or 0.0)}
        )
        for call in fact.calls
    )
    return fact.model_copy(update={"steps": steps, "calls": calls, "begin_us": fact.begin_us + by})


def recording(ranks: Sequence[TraceFact], window: str = "latest") -> Recording:
    """Return the recording of `ddp-doctor trace` for these facts."""
    readings = (collected("trace", fact, rank=fact.rank) for fact in ranks)
    return Recording(options=Options(command="trace", window=window), readings=tuple(readings))
