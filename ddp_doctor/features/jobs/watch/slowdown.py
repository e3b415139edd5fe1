"""Slowdowns of the watched job, and the text about them, always from a single count of its steps."""

import time
from collections.abc import Collection, Sequence

from ddp_doctor.features.jobs.watch.evidence import Evidence, Output
from ddp_doctor.features.jobs.watch.pace import LASTS_MOST_S, Fall, Pace
from ddp_doctor.features.jobs.watch.step_counts import Doors, Gloo, Said, Source

#: Process groups are created while the job runs, each with its own threads, the first some time after a rank's start.
_SEARCH_S, _BEGINNING_S = 60.0, 300.0
#: Minimum time between samples: while the ranks are checked, the lookout calls ten times per second.
_LEAST_PAUSE_S = 1.5
_UNITS = {1e9: "GB", 1e6: "MB", 1e3: "kB", 1.0: "bytes"}


class Slowdown:
    """Samples the ranks of one command repeatedly.

    ``speaks``: False to report only falls with a rank to name, because another node's watcher reports the others.
    """

    def __init__(self, evidence: Evidence, outputs: Sequence[Output], *, speaks: bool = True) -> None:
        self._evidence, self._outputs, self._speaks = evidence, outputs, speaks
        self._paces = {source: Pace() for source in Source}
        self._pids: Collection[int] = ()
        self._gloo, self._doors, self._said = Gloo(), Doors(), Said()
        self._begun_s = self._searched_s = self._looked_s = 0.0
        self._told: Fall | None = None

    def look(self, pids: Collection[int], longest_gap_s: float) -> None:
        """Sample the ranks, until some have ended, because the job is then about to end."""
        now = time.monotonic()
        if not pids or set(pids) < set(self._pids) or now - self._looked_s < _LEAST_PAUSE_S:
            return
        if set(pids) != set(self._pids):
            self._pids, self._begun_s = pids, now
            self._doors.close()
            self._gloo, self._doors = Gloo(), Doors()
            for pace in self._paces.values():
                pace.begin_anew(now)
        is_beginning = not self._gloo.threads and now - self._begun_s < _BEGINNING_S
        if is_beginning or now - self._searched_s > _SEARCH_S:
            self._searched_s = now
            self._gloo.search(pids)
        if now - self._looked_s > longest_gap_s:
            for pace in self._paces.values():
                pace.pause()
        self._looked_s = now
        seen = (Source.GLOO, self._gloo.look(now)) if self._gloo.threads else None
        if seen is None and self._speaks:  # the doors answer for all nodes
            seen = self._doors.look(now, pids)
        outputs = {output.path: output for output in (*self._evidence.outputs(), *self._outputs)}
        for source, look in (*filter(None, [seen]), *self._said.look(now, outputs.values())):
            self._paces[source].add(look)

    def close(self) -> None:
        """Stop asking, because the command has ended."""
        self._doors.close()

    def news(self) -> str:
        """Return a text if the job became slower, or faster again, since the last call; otherwise ""."""
        source, fall = self._fall()
        was_slow = self._told is not None and self._told.until_s is None
        if fall is None or (fall.until_s is None) == was_slow:
            return ""
        self._told = fall
        if fall.until_s is None:
            return self._slower(source, fall)
        is_measured = self._speaks and self._paces[source].windows  # if not, other ranks have started
        return f"became faster again at {_clock(fall.until_s)}" if is_measured else ""

    def whole(self) -> str:
        """Return a text about the ended job, or "" if it did not become slower, or only for a short time."""
        source, fall = self._fall()
        soon = fall and fall.until_s is not None and fall.until_s - fall.since_s < LASTS_MOST_S
        return self._slower(source, fall) if fall and not soon else ""

    def _fall(self) -> tuple[Source, Fall | None]:
        most = max(len(pace.windows) for pace in self._paces.values())
        source = next(source for source, pace in self._paces.items() if 2 * len(pace.windows) >= most)
        fall = self._paces[source].fall
        # Lines are of many kinds: a job that prints far fewer more likely does another part of its work.
        return source, None if fall and fall.is_deep and source is Source.LINES else fall

    def _slower(self, source: Source, fall: Fall) -> str:
        when = f"became slower at {_clock(fall.since_s)}"
        if fall.until_s is not None:
            when = f"was slower from {_clock(fall.since_s)} to {_clock(fall.until_s)}"
        counted, by = source.value
        said = f"{when}: {_rates(fall, counted)}, {by}"
        if last := self._paces[source].last_rank():
            of = " on this node" if source is Source.GLOO and self._gloo.world_size > len(self._pids) else ""
            return f"{said}; rank {last.rank} was last{of} in {last.times} of {last.looks} samples of waiting ranks"
        return said if self._speaks else ""


def _rates(fall: Fall, counted: str) -> str:
    scale, per = 1.0, "second"
    if counted == "bytes":
        scale, counted = next((size, name) for size, name in _UNITS.items() if fall.before >= size or size == 1.0)
    elif fall.before < 0.2:
        scale, per = 1 / 60, "minute"
    rates = (fall.before / scale, fall.after / scale)
    before, after = (f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}" for rate in rates)
    return f"from {before} to {after} {counted} per {per}"


def _clock(at_s: float) -> str:
    ago_s = time.monotonic() - at_s
    return time.strftime("%H:%M" if ago_s < 20 * 3600 else "%b %d %H:%M", time.localtime(time.time() - ago_s))
