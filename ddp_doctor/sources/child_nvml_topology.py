"""Query NVML about the links of the GPUs, in a separate program that prints one JSON object and exits.

    python -I child_nvml_topology.py 15
    {"error": null, "call": "", "gpu": null, "text": "", "elapsed_s": 0.1, "gpus": [
       {"index": 0, "name": "NVIDIA H100 80GB HBM3", "bus_id": "00000000:1B:00.0", "cpu_affinity": "0-31,64-95",
        "numa_affinity": "0", "gpu_numa_id": null, "error": null, "unavailable": {"gpu_numa_id": "not_supported"},
        "nvlinks": [{"index": 0, "active": true, "gb_per_s": 26.562, "remote": "switch",
                     "remote_bus_id": "00000000:05:00.0", "errors": {"replay": 0, "recovery": 0, "crc": 0},
                     "errors_per_s": {}}, …]}, …],
     "ancestors": [[0, 1, 50], …], "p2p": {"read": [[0, 1, 0], [1, 0, 0], …], "write": …}}

``ancestors`` are pairs of GPUs and NVML's level; ``p2p`` are ordered pairs and NVML's status. Like child_nvml.py, it
runs in a separate process, stops after the seconds in its argument by a second thread, and continues after any refusal
(both by nvml_calls.py).
"""

from __future__ import annotations

import runpy
import time
from itertools import combinations, permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_doctor.sources.nvml_calls import Nvml

#: By path: an isolated process has no package to import from.
CALLS = runpy.run_path(str(Path(__file__).with_name("nvml_calls.py")))
#: Links with errors are read twice, to distinguish current errors from old ones.
SECOND_LOOK_S = 0.5

#: Maximum number of links of one GPU, if the binding has no number (nvml.h: 18 up to driver 570, 36 later).
MOST_LINKS = 18
#: Masks of NVML are arrays of 64 bits: room for 4096 CPUs and 1024 NUMA nodes, the maximum of Linux.
CPU_WORDS, NODE_WORDS = 64, 16

#: nvmlNvLinkDeviceType_t: the device at the other end of a link.
REMOTES = {0: "gpu", 1: "cpu", 2: "switch"}
#: nvmlGpuP2PCapsIndex_t
CAPABILITIES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}

#: Fields of nvmlDeviceGetFieldValues, which take the link as their scope (nvml.h).
SPEED, STATE = 164, 165
#: NVLink 3 and 4 count the first three, NVLink 5 the others.
ERROR_FIELDS = {161: "replay", 162: "recovery", 163: "crc", 215: "recovery", 214: "recovery_failed"}
#: nvmlNvLinkErrorCounter_t, used if the fields above are unknown (before NVLink 4).
ERROR_COUNTERS = {0: "replay", 1: "recovery", 2: "crc"}
#: Speed of links 0 to 5, 6 to 11, and of all, used if the field above is unknown.
SPEEDS = {**{link: 84 + link for link in range(6)}, **{link: 126 + link for link in range(6, 12)}}
SPEED_OF_ALL = 90


def main() -> None:
    """Query NVML and print the answers, or stop at the time limit."""
    CALLS["run"](_ask, gpus=[], ancestors=[], p2p={})


def _ask(nvml: Nvml, count: int) -> None:
    answer = nvml.answer
    handles: dict[int, Any] = {}
    for index in range(count):
        gpu, handle = _gpu(nvml, index)
        answer["gpus"].append(gpu)
        if gpu["error"] is None:
            handles[index] = handle
    answer["gpu"] = None
    _pairs(nvml, handles, answer)
    _ask_again(nvml, handles, answer["gpus"])


def _field_values(nvml: Nvml, handle: Any, ids: dict[int, Any], link: int) -> dict[int, int]:
    values, reason = nvml.call("nvmlDeviceGetFieldValues", handle, [(field, link) for field in ids])
    found = [] if reason else [value for value in values if value.nvmlReturn == 0]
    # In the type that NVML gives; 1 is a 32-bit number (nvmlValueType_t).
    return {of.fieldId: int(of.value.uiVal if of.valueType == 1 else of.value.ullVal) for of in found}


def _gpu(nvml: Nvml, index: int) -> tuple[dict[str, Any], Any]:
    gpu, handle = CALLS["identity"](nvml, index)
    gpu["nvlinks"] = []
    if gpu["error"] is not None:
        return gpu, None
    nvml.fill(gpu, "cpu_affinity", "nvmlDeviceGetCpuAffinity", handle, CPU_WORDS, use=_list)
    nvml.fill(gpu, "numa_affinity", "nvmlDeviceGetMemoryAffinity", handle, NODE_WORDS, 0, use=_list)
    nvml.fill(gpu, "gpu_numa_id", "nvmlDeviceGetNumaNodeId", handle)
    if not gpu["mig_enabled"]:  # MIG disables the links
        gpu["nvlinks"] = _nvlinks(nvml, handle)
    return gpu, handle


def _list(words: Any) -> str:
    """Return a mask as a list in the kernel's form: "0-2,8" for bits 0, 1, 2 and 8."""
    bits = [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    starts = [bit for bit in bits if bit - 1 not in set(bits)]
    ends = [bit for bit in bits if bit + 1 not in set(bits)]
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in zip(starts, ends, strict=True))


def _nvlinks(nvml: Nvml, handle: Any) -> list[dict[str, Any]]:
    links = []
    for number in range(getattr(nvml.pynvml, "NVML_NVLINK_MAX_LINKS", MOST_LINKS)):
        state, reason = nvml.call("nvmlDeviceGetNvLinkState", handle, number)
        if reason in ("not_supported", "function_not_found"):  # newer GPUs only report it by a field
            state = _field_values(nvml, handle, {STATE: "state"}, number).get(STATE)
        if state is None:  # the GPU has no such link
            break
        link: dict[str, Any] = {"index": number, "active": int(state) == 1, "errors": {}, "errors_per_s": {}}
        if link["active"]:
            kind, _ = nvml.call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
            pci, _ = nvml.call("nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
            link.update(remote=REMOTES.get(kind), remote_bus_id=None if pci is None else CALLS["bus_id"](pci))
            asked = [field for field in (SPEED, SPEEDS.get(number), SPEED_OF_ALL) if field is not None]
            known = _field_values(nvml, handle, dict.fromkeys(asked), number)
            speeds = [known[field] for field in asked if known.get(field)]
            link["gb_per_s"] = speeds[0] / 1000 if speeds else None  # one way; NVML counts MB/s
            link["errors"] = _error_counts(nvml, handle, number)
        links.append(link)
    return links


def _error_counts(nvml: Nvml, handle: Any, link: int) -> dict[str, int]:
    """Return the errors that a link has counted since the driver was loaded or the counters were reset."""
    fields = _field_values(nvml, handle, ERROR_FIELDS, link)
    if fields:
        names = {ERROR_FIELDS[field] for field in fields}
        return {
            name: max(value for field, value in fields.items() if ERROR_FIELDS[field] == name) for name in sorted(names)
        }
    counted = {
        name: nvml.call("nvmlDeviceGetNvLinkErrorCounter", handle, link, number)[0]
        for number, name in ERROR_COUNTERS.items()
    }
    return {name: value for name, value in counted.items() if value is not None}


def _pairs(nvml: Nvml, handles: dict[int, Any], answer: dict[str, Any]) -> None:
    for first, second in combinations(handles, 2):
        level, _ = nvml.call("nvmlDeviceGetTopologyCommonAncestor", handles[first], handles[second])
        if level is not None:
            answer["ancestors"].append([first, second, level])
    for name, number in CAPABILITIES.items():
        statuses = []
        for first, second in permutations(handles, 2):
            status, reason = nvml.call("nvmlDeviceGetP2PStatus", handles[first], handles[second], number)
            if reason in ("function_not_found", "binding_too_old"):
                break
            if status is not None:
                statuses.append([first, second, status])
        answer["p2p"][name] = statuses


def _ask_again(nvml: Nvml, handles: dict[int, Any], gpus: list[dict[str, Any]]) -> None:
    """Read again how fast the errors of links with errors increase."""
    stained = [(gpu, link) for gpu in gpus for link in gpu["nvlinks"] if any(link["errors"].values())]
    if not stained:
        return
    since = time.monotonic()
    time.sleep(SECOND_LOOK_S)
    for gpu, link in stained:
        nvml.answer["gpu"] = gpu["index"]
        now = _error_counts(nvml, handles[gpu["index"]], link["index"])
        elapsed_s = time.monotonic() - since
        grew = {name: now.get(name, before) - before for name, before in link["errors"].items()}
        link["errors_per_s"] = {name: round(more / elapsed_s, 3) for name, more in grew.items()}
        link["errors"].update(now)


if __name__ == "__main__":
    main()
