"""All-reduces measured by other tools: nccl-tests (its table, or the JSON of -J), and NCCL Inspector's lines.

    # Collective test starting: all_reduce_perf
    #  Rank  0 Group  0 Pid  64904 on       n1 device  0 [0000:17:00] NVIDIA A100
    #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
         8388608       2097152     float     sum      -1    51.03  164.38  287.67      0    50.80  165.12  288.96      0
    # Out of bounds values : 0 OK

nccl-tests (src/common.cu, src/util.cu) prints the out-of-place results first. Before 2.13, the last column is the
largest error. Up to 2.9, there is no root column. Inspector (plugins/profiler/inspector of NCCL 2.28) prints one object
per line:

    {"header": {"id": "0x7f", "rank": 2, "n_ranks": 8, "nnodes": 1}, "metadata": {"hostname": "n1"}, "coll_perf":
     {"coll": "AllReduce", "coll_sn": 7, "coll_msg_size_bytes": 1024, "coll_exec_time_us": 61,
      "coll_algobw_gbs": 277.2, "coll_busbw_gbs": 485.1}}
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from ddp_doctor.facts.collectives import AllReduceFact, SizeResult
from ddp_doctor.features.jobs.table.signs import TEST_BEGINS
from ddp_doctor.parse.json_value import OTHER_SHAPE, json_value
from ddp_doctor.parse.software import nccl_release

#: Words of nccl-tests' lines.
_ENDS = "Avg bus bandwidth"
TABLE_WORDS = (
    b"  sum  ",
    b"  none  ",
    b"Collective test starting: ",
    b"  Rank ",
    b"# nccl-tests version ",
    TEST_BEGINS.encode(),
    _ENDS.encode(),
)
_ROW = re.compile(
    r"^\s*(\d{1,15})\s+\d{1,15}\s+\w{3,12}\s+sum\s+(?:-?\d{1,4}\s+)?"
    r"(\d{1,12}(?:\.\d{1,4})?)\s+(\d{1,6}\.\d{1,4})\s+(\d{1,6}\.\d{1,4})\s+(\d{1,15}(?![\d.e])|\S{1,12})"
)
_ANY_ROW = re.compile(r"^\s*\d{1,15}\s+\d{1,15}\s+\w{3,12}\s+(?:sum|none)\s")
_DEVICE = re.compile(r"^#\s+Rank\s+(\d{1,6})\b.{0,20}\bPid\b(?:.{0,200}\[[\da-fx:.]{2,20}\]\s+(\S[^\[\]]{0,60}))?")
_LIBRARY = re.compile(r"^# nccl-tests version \S{1,20} .{0,40}\bnccl-library=(\d{4,6})\b")
_MOST_SIZES = 64
_CUT = "it is truncated, or NCCL did not write it"


class Table:
    """nccl-tests' table of all-reduces, among a file's lines."""

    def __init__(self) -> None:
        self.sizes: list[SizeResult] = []
        self._devices: dict[int, str] = {}  # by rank
        self._nccl: str | None = None
        self.begun = False  # whether a test has begun and not ended
        self.begun_at = 0
        self.rows = 0
        self._test = ""

    def line(self, text: str, number: int = 0) -> None:
        """Take a line with one of TABLE_WORDS, and its number in the file."""
        if TEST_BEGINS in text:
            self.begun, self.begun_at = True, number
        elif _ENDS in text:
            self.begun, self.rows = False, 0
        elif device := _DEVICE.match(text):
            self._devices[int(device[1])] = (device[2] or "").strip()
        elif library := _LIBRARY.match(text):
            self._nccl = nccl_release(int(library[1]))
        elif "Collective test starting: " in text:
            self._test = text.rpartition(": ")[2].strip()
        elif _ANY_ROW.match(text):
            self.rows += 1
        if (row := _ROW.match(text)) and len(self.sizes) < _MOST_SIZES:
            time_us, algbw, busbw = (float(row[column]) for column in (2, 3, 4))
            # A reduce-scatter moves half of the data, so its bus bandwidth is below its algorithm bandwidth.
            if self._test.endswith("all_reduce_perf") or (not self._test and busbw >= algbw * 0.98):
                wrong = int(row[5]) if row[5].isdigit() else 0
                self.sizes.append(_size(int(row[1]), [time_us], [algbw], [busbw], wrong=wrong))

    def fact(self, ranks: int) -> AllReduceFact | None:
        """Return the measured all-reduces, or None. ``ranks`` is used if the table does not show their number."""
        if not self.sizes:
            return None
        names = tuple(name for _, name in sorted(self._devices.items()))
        return AllReduceFact(
            ranks=max(self._devices, default=-1) + 1 or ranks,
            tested=(),
            repeatable=True,
            sizes=tuple(self.sizes),
            measured_by="nccl-tests",
            gpu_names=names if all(names) else (),
            nccl=self._nccl,
        )


def is_nccl_tests(head: bytes, _name: str = "") -> bool:
    """Return True if a file is the JSON that nccl-tests writes with -J."""
    return head.lstrip()[:1] == b"{" and b'"out_of_place"' in head and b'"bus_bw"' in head


def text_of_nccl_tests(data: bytes) -> str:
    """Return the table that nccl-tests would have printed. Raises ValueError."""
    try:
        report = json_value(data)
        test = next((str(arg) for arg in report.get("args", ()) if str(arg).endswith("_perf")), "")
        devices = report.get("devices") or report.get("config", {}).get("devices", ())
        lines = [f"# Collective test starting: {test.rpartition('/')[2]}"] if test else []
        lines += [f"#  Rank {number:2} Pid 0" for number in range(len(devices))]
        for row in report["results"]:
            half = row["out_of_place"]
            numbers = "  ".join(f"{float(half[name]):.2f}" for name in ("time", "alg_bw", "bus_bw"))
            wrong = int(float(half.get("nwrong", 0)))
            lines.append(f"  {int(row['size'])}  {int(row.get('count', 0))}  {row.get('type', 'float')}"
                         f"  {row.get('redop', 'sum')}  -1  {numbers}  {wrong}")  # fmt: skip
        count = int(report.get("out_of_bounds", {}).get("count", 0))
    except OTHER_SHAPE as error:
        raise ValueError(_CUT) from error
    return "\n".join([*lines, f"# Out of bounds values : {count} {'FAILED' if count else 'OK'}", ""])


def is_inspector(head: bytes, _name: str = "") -> bool:
    """Return True if a file was written by NCCL Inspector."""
    return head.lstrip()[:1] == b"{" and b'"coll_perf"' in head[:4096]


def inspected(data: bytes) -> Iterator[tuple[int, AllReduceFact]]:
    """Yield by rank the all-reduces of the largest communicator: the median for each of its most frequent sizes.

    Raises ValueError if no line can be read. The last line of a job that was killed is truncated.
    """
    found: dict[tuple[int, int], dict[int, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    lines = 0
    for line in data.splitlines():
        if b'"coll_perf"' not in line:
            continue
        try:
            rank, ranks, values = _operation(json_value(line))
        except OTHER_SHAPE:
            continue
        lines += 1
        if values is not None:
            found[rank, ranks][values[0]].append(values[1:])
    if not lines:
        raise ValueError(_CUT)
    largest = max((ranks for _, ranks in found), default=0)
    for (rank, ranks), sizes in sorted(found.items()):
        if ranks == largest:
            often = Counter({size: len(times) for size, times in sizes.items()}).most_common(_MOST_SIZES)
            runs = tuple(_size(size, *zip(*sizes[size], strict=True)) for size, _ in sorted(often))
            fact = AllReduceFact(ranks=ranks, tested=(), repeatable=True, sizes=runs, measured_by="NCCL Inspector")
            yield rank, fact


def _operation(entry: dict[str, Any]) -> tuple[int, int, tuple[int, float, float, float] | None]:
    header = entry.get("header", entry)  # some collectors write both as one object
    done = entry["coll_perf"]
    time_us, algbw, busbw = (float(done[f"coll_{name}"]) for name in ("exec_time_us", "algobw_gbs", "busbw_gbs"))
    if done["coll"] != "AllReduce" or not math.isfinite(time_us + algbw + busbw) or time_us <= 0:
        return 0, 0, None
    return (int(header["rank"]), int(header["n_ranks"]), (int(done["coll_msg_size_bytes"]), time_us, algbw, busbw))


def _size(
    size: int, times_us: Sequence[float], algbw: Sequence[float], busbw: Sequence[float], *, wrong: int = 0
) -> SizeResult:
    return SizeResult(
        size_bytes=size,
        time_us=median(times_us),
        min_us=min(times_us),
        max_us=max(times_us),
        iterations=len(times_us),
        algbw_gb_per_s=median(algbw),
        busbw_gb_per_s=median(busbw),
        wrong=wrong,
    )
