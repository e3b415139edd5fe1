"""Dumps of torch's flight recorder: pickles (``_dump_fr_trace``) and JSON (``_dump_fr_trace_json``), of any backend.

Fields are read by their keys. The version number adds no information (2.2 to 2.10 in torch 2.4 to 2.15, and copies of
the recorder in other vendors' backends and in torchcomms).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddp_doctor.facts.given import FlightDumpFact, GroupSeen
from ddp_doctor.model.trial import FlightEntry
from ddp_doctor.parse.json_value import NotJson, json_value
from ddp_doctor.parse.plain_pickle import NotPlainData, plain_data
from ddp_doctor.parse.text import as_utf8

#: The largest dump that is read: 2,000 entries with their frames take 1 to 3 MB.
_LARGEST_BYTES = 64 * 1024 * 1024
#: Entries kept per group: collectives before the first open one, from the first open one, and the newest.
_BEFORE, _AFTER, _NEWEST = 16, 8, 8
_MOST_OPEN, _MOST_FRAMES, _MOST_SIZES = 32, 20, 64
_LONGEST_NAME = 200
_MOST_RANKS = 200_000
_LONGEST_RANK = 6  # digits
#: Backends that record themselves. A hook records for other backends, and retires an entry up to a second after its end
#: (torch 2.15 c10d/hooks/FlightRecorderHook.hpp).
_SELF_RECORDING = ("gloo", "nccl", "xccl")
_RETIRED_WITHIN_S = 2.0

#: Names of files that torch, or a copy of its recorder, writes. An empty dump can be recognized only by its name.
_NAMED = re.compile(
    r"(?:trace|flight|fr|dump)[a-z_-]*?(?:_?rank)?_?\d+[^/]*$|(?:^|/)(?:rank_?)?\d+(?:[_.-][^/]*)?\.json$"
)
_KEYS = ("pg_config", "pg_status", "nccl_comm_state", "comm_lib_version", "collective_seq_id", "p2p_seq_id")
#: These are all empty if the recorder is off. The first has an entry for each group that was made (torch 2.9.1).
_FILLED = ("pg_config", "pg_status", "entries", "nccl_comm_state")
_RANK = re.compile(r"rank[_-]?(\d+)")
_NUMBER = re.compile(r"^(\d+)(?=[_.-])|(\d+)(?:\.[a-z]+)*$")
_TRANSFER = re.compile(r"(?:send|recv) (\d+) ?(?:->|<-) ?(\d+)")
_DEFAULT = "0"


def is_dump(head: bytes, name: str) -> bool:
    """Return True if a file is one rank's dump, by its first kilobytes or, if it is empty, by its name."""
    start = head.lstrip()[:4096]
    if start.startswith((b"\x80", b"(d", b"}", b"{")):
        return any(key.encode() in head for key in _KEYS)
    return not start and _NAMED.search(name.lower()) is not None


def read_dump(data: bytes, name: str, written_at_s: float | None) -> FlightDumpFact:
    """Read one rank's dump. ``written_at_s``: the file's time, since the epoch. Never raises: see ``problem``."""
    fact = FlightDumpFact(file=name, rank=_rank_of(name), written_at_s=written_at_s)
    try:
        return _read(_content(data), fact)
    except (NotPlainData, ValueError, RecursionError) as error:
        return fact.model_copy(update={"problem": str(error)})


class RecordedCall(NamedTuple):
    """A recorded call of a rank."""

    entry: FlightEntry
    is_transfer: bool
    taken: tuple[tuple[int, ...], ...]  # shapes of its outputs


def recorded_calls(data: bytes, written_at_s: float | None) -> tuple[RecordedCall, ...]:
    """Return all calls that a dump has kept, in the order they were made. Raises ValueError."""
    return tuple(
        RecordedCall(
            _without_late(entry, entry_of(entry), written_at_s), _is_transfer(entry), _shapes(entry, "output_sizes")
        )
        for entry in _entries(_content(data))
    )


def still_open(last: FlightDumpFact, first: FlightDumpFact) -> FlightDumpFact:
    """Return the later of two dumps of one process. A collective stays open in it only if it was open in both."""
    before = {(group.name, entry.seq) for group in first.groups for entry in group.entries if entry.is_open}
    groups = tuple(
        group.model_copy(
            update={
                "entries": tuple(
                    entry.model_copy(update={"open_twice": entry.is_open and (group.name, entry.seq) in before})
                    for entry in group.entries
                )
            }
        )
        for group in last.groups
    )
    return last.model_copy(update={"groups": groups})


def _content(data: bytes) -> Mapping[str, Any]:
    if not data.strip(b"\0 \r\n\t"):
        raise ValueError("the file is empty" if not data else "the file contains only whitespace or NUL bytes")
    if len(data) > _LARGEST_BYTES:
        raise ValueError(f"the file is larger than {_LARGEST_BYTES // 1024**2} MiB and was not read")
    if data.lstrip().startswith(b"{"):
        try:
            dump = json_value(data)
        except NotJson as error:
            end = data.rstrip()
            cut_off = error.at >= len(end) or not end.endswith(b"}")
            raise ValueError("the file is truncated" if cut_off else f"it is damaged: {error}") from None
    else:
        try:
            dump = plain_data(data)
        except NotPlainData as error:
            reason = "the file is truncated" if "truncated" in str(error) else f"the pickle was not read: {error}"
            raise ValueError(reason) from None
    if not isinstance(dump, Mapping) or not any(key in dump for key in ("entries", "pg_config", "pg_status")):
        raise ValueError("it has no flight recorder entries")
    if "pg_config" in dump and not any(dump.get(key) for key in _FILLED):
        raise ValueError("it has no entries because TORCH_FR_BUFFER_SIZE was not set")
    return dump


def _rank_of(name: str) -> int | None:
    *folders, file = name.lower().split("/")
    found = _RANK.search(file) or _NUMBER.search(file)
    for folder in reversed(folders):
        found = found or _RANK.search(folder)
    number = next((group for group in found.groups() if group), "") if found else ""
    return int(number) if 0 < len(number) <= _LONGEST_RANK else None


# --- one entry ----------------------------------------------------------------------------------


def entry_of(entry: Mapping[str, Any]) -> FlightEntry:
    """Return a collective from an entry of a dump or of a running rank's recorder."""
    return FlightEntry(
        seq=_whole(entry.get("collective_seq_id")),
        op=_text(entry.get("profiling_name")).rpartition(":")[2],
        sizes=_shapes(entry, "input_sizes"),
        dtypes=tuple(_text(dtype) for dtype in _list(entry.get("input_dtypes"))),
        # The watchdog of NCCL retires an entry some time after it has seen its end.
        retired=bool(entry.get("retired", False)) or entry.get("state") == "completed",
        group=_group_of(entry),
    )


def _shapes(entry: Mapping[str, Any], key: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(_whole(length) for length in _list(size)) for size in _list(entry.get(key)))


def _group_of(entry: Mapping[str, Any]) -> str:
    # With TORCH_DISTRIBUTED_DEBUG=DETAIL, the name is empty for the groups that torch wraps and for its own groups.
    named = _list(entry.get("process_group"))
    return (_text(named[0]) if named else "") or f"pg_id {_whole(entry.get('pg_id'))}"


def _text(value: object) -> str:
    return as_utf8(value[:_LONGEST_NAME]) if isinstance(value, str) else ""


def _list(value: object) -> Sequence[Any]:
    return value[:_MOST_SIZES] if isinstance(value, (list, tuple)) else ()


def _whole(value: object) -> int:
    """Return a number of up to 63 bits, including a number written as text; 0 for anything else."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
        return int(value)
    return value if isinstance(value, int) and abs(value) < 2**63 else 0


# --- a dump -------------------------------------------------------------------------------------


def _entries(dump: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    held = dump.get("entries")
    raw = [entry for entry in held if isinstance(entry, Mapping)] if isinstance(held, (list, tuple)) else []
    return _of_last_generation(sorted(raw, key=lambda entry: _whole(entry.get("record_id"))))


def _read(dump: Mapping[str, Any], fact: FlightDumpFact) -> FlightDumpFact:
    raw = _entries(dump)
    configured = _ranks_by_group(dump.get("pg_config"))
    collectives = [(entry, entry_of(entry)) for entry in raw if not _is_transfer(entry)]
    collectives = [(entry, _without_late(entry, read, fact.written_at_s)) for entry, read in collectives]
    still_open = [(entry, read) for entry, read in collectives if read.is_open]
    peers: dict[str, None] = {}  # the other ends of open sends and receives, as "group:number within the group"
    for entry in raw:
        transfer = _TRANSFER.search(_text(entry.get("profiling_name")))
        if transfer and entry_of(entry).is_open:
            peers[f"{_group_of(entry)}:{int(transfer[2][:_LONGEST_RANK])}"] = None
    wrapped = bool(raw) and _whole(raw[0].get("record_id")) > 0
    stack = next((entry.get("frames") for entry, _ in (still_open or collectives)[-1:]), None)
    frames = [frame for frame in stack[:_MOST_FRAMES] if isinstance(frame, Mapping)] if isinstance(stack, list) else []
    return fact.model_copy(
        update={
            "world_size": len(configured.get(_DEFAULT, ())) or None,
            "version": _text(dump.get("version")),
            "groups": _groups(collectives, configured, dump.get("pg_status"), wrapped),
            "newest_at_s": max((_whole(entry.get("time_created_ns")) for entry in raw), default=0) / 1e9 or None,
            "oldest_at_s": min((_whole(entry.get("time_created_ns")) for entry in raw), default=0) / 1e9 or None,
            "frames": tuple(
                f"{_text(frame.get('filename'))}:{_whole(frame.get('line'))} in {_text(frame.get('name'))}"
                for frame in reversed(frames)
            ),
            "open_order": tuple(dict.fromkeys(f"{read.group}:{read.seq}" for _, read in still_open))[:_MOST_OPEN],
            "peers": tuple(peers)[:_MOST_OPEN],
        }
    )


def _is_transfer(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("is_p2p")) or _TRANSFER.search(_text(entry.get("profiling_name"))) is not None


def _of_last_generation(raw: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the entries since the default group was last made: a restart within the process counts from 1 again."""
    start, seen = 0, 0
    for place, entry in enumerate(raw):
        if _group_of(entry) == _DEFAULT and not _is_transfer(entry):
            seq = _whole(entry.get("collective_seq_id"))
            if seq < seen:
                start = place
            seen = seq
    return raw[start:]


def _without_late(entry: Mapping[str, Any], read: FlightEntry, written_at_s: float | None) -> FlightEntry:
    """Return an entry; it counts as ended if its hook may not have retired it before the dump was written."""
    backend = _text(entry.get("profiling_name")).partition(":")[0]
    made_at_s = _whole(entry.get("time_created_ns")) / 1e9
    if read.retired or written_at_s is None or backend in _SELF_RECORDING:
        return read
    late = 0 <= written_at_s - made_at_s < _RETIRED_WITHIN_S
    return read.model_copy(update={"open_twice": False}) if late else read


def _ranks_by_group(config: object) -> dict[str, tuple[int, ...]]:
    """Return the global ranks of each configured group. gloo only lists the last group made, as ""."""
    members = {}
    for name, group in config.items() if isinstance(config, Mapping) else ():
        ranks = group.get("ranks") if isinstance(group, Mapping) else None
        if isinstance(ranks, str):
            ranks = [int(rank) for rank in re.findall(r"\d{1,6}", ranks[: 8 * _MOST_RANKS])]
        if isinstance(ranks, (list, tuple)):
            members[_text(name)] = tuple(sorted({_whole(rank) for rank in ranks[:_MOST_RANKS]}))
    return members


def _groups(
    collectives: Sequence[tuple[Mapping[str, Any], FlightEntry]],
    configured: Mapping[str, tuple[int, ...]],
    status: object,
    wrapped: bool,
) -> tuple[GroupSeen, ...]:
    by_name: dict[str, list[FlightEntry]] = {name: [] for name in configured if name}
    descriptions: dict[str, str] = {}
    numbers = {"0": _DEFAULT}  # a process counts its groups from 0
    for entry, read in collectives:
        by_name.setdefault(read.group, []).append(read)
        named = _list(entry.get("process_group"))
        descriptions[read.group] = _text(named[1]) if len(named) > 1 else ""
        numbers[str(_whole(entry.get("pg_id")))] = read.group
    enqueued: dict[str, int] = {}
    completed: dict[str, int] = {}
    for number, counts in status.items() if isinstance(status, Mapping) else ():
        name = numbers.get(str(number))
        if name is not None and isinstance(counts, Mapping):
            enqueued[name] = max(0, _whole(counts.get("last_enqueued_collective")))
            completed[name] = max(0, _whole(counts.get("last_completed_collective")))
            by_name.setdefault(name, [])
    last_made = configured.get("", ()) if by_name.keys() <= {_DEFAULT} else ()
    return tuple(
        GroupSeen(
            name=name,
            description=descriptions.get(name, "default_pg" if name == _DEFAULT else ""),
            ranks=configured.get(name, ()) or (last_made if name == _DEFAULT else ()),
            entries=_deciding_entries(entries),
            highest_seq=max((entry.seq for entry in entries), default=enqueued.get(name, 0)),
            completed_seq=_completed(entries, enqueued.get(name, 0), completed.get(name, 0)),
            wrapped=wrapped,
        )
        for name, entries in by_name.items()
    )


def _completed(entries: Sequence[FlightEntry], enqueued: int, completed: int) -> int:
    """Return the last completed collective, from the counts unless they include sends and receives."""
    highest = max((entry.seq for entry in entries), default=enqueued)
    return max(completed if enqueued == highest else 0, *(entry.seq for entry in entries if not entry.is_open), 0)


def _deciding_entries(entries: Sequence[FlightEntry]) -> tuple[FlightEntry, ...]:
    """Return the entries that show which rank waits: the collectives around the first open one, and the newest."""
    first = next((place for place, entry in enumerate(entries) if entry.is_open), len(entries))
    places = {
        *range(max(0, first - _BEFORE), min(first + _AFTER, len(entries))),
        *range(max(0, len(entries) - _NEWEST), len(entries)),
    }
    return tuple(entries[place] for place in sorted(places))
