"""The paths that NCCL chose, from its ``NCCL_DEBUG=INFO`` log: the transport between each pair of ranks.

    wk:8811:8840 [0] NCCL INFO NCCL version 2.27.5+cuda12.8
    wk:8811:8840 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS
    wk:8811:8840 [0] NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE [1]mlx5_bond_0:1/RoCE [RO]; OOB eth0:…
    wk:8811:8840 [0] NCCL INFO Using network IB
    wk:8811:8840 [0] NCCL INFO NET/Socket: Using 2 threads and 8 sockets per thread
    wk:8811:8840 [0] NCCL INFO comm 0x55d rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9 - Init START
    wk:8811:8840 [0] NCCL INFO comm 0x55d rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
    wk:8811:8840 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    wk:8811:8840 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/1/GDRDMA
    wk:8811:8840 [0] NCCL INFO CollNet 00/0 : 2 [receive] via COLLNET/SHARP/0/GDRDMA
    wk:8811:8840 [0] NCCL INFO NVLS multicast support is available on dev 0
    wk:8811:8840 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1
    wk:8811:8840 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
    wk:8811:8840 [0] NCCL INFO comm 0x55d rank 0 nranks 4 … busId 1b000 commId 0x9 - Init COMPLETE

Up to 2.6 the line has Ring instead of Channel. The connection number after the channel exists since 2.14. The brackets
hold the NVML index since 2.18.3 and a PCI bus id before (src/transport/{p2p,shm,net}.cc of each release). The number in
NET/IB/3(2) is the rank whose NIC is used instead of the own NIC (PXN). Since 2.22 rings and trees are connected at the
first collective, so a log without a "Connected" line proves nothing.
"""

import re
from collections.abc import Iterable
from typing import TypeVar

from ddp_doctor.facts.node.nccl_log import CommInit, Hca, NcclTransportFact, Pattern, RankDevice, Transport

T = TypeVar("T")

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)(?:\+cuda(\d{1,3}\.\d{1,3}))?")
#: "Bootstrap : Using" until 2.23; up to 2.7 with a list of interfaces. The first of them is used.
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?:\[\d{1,3}\])?([^:\s]{1,64}):[^<\s]{1,64}<\d{1,5}>")
_NET_SOCKET = re.compile(r"NET/Socket ?: Using (\[\d{1,3}\][^\r\n]{1,600})")
_INTERFACE = re.compile(r"\[\d{1,3}\]([^:\s]{1,64}):[^<\s]{1,64}<\d{1,5}>")
_DRIVER = re.compile(r"cudaDriverVersion (\d{4,6})\b")
_PLUGIN = re.compile(
    r"(?:Loaded (?:net|coll|collnet) plugin |Successfully loaded external \w{1,20} plugin |Using tuner plugin "
    r"|NET/OFI Initializing )([^\r\n(]{1,200})"
)
_CHANNELS = re.compile(r"\s(\d{1,3}) coll channels")
#: Without GPU in 2.4; with the parent's address, color and key for a split communicator.
_INIT = re.compile(
    r"comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) nranks (\d{1,7})\b[^\r\n]{0,200}?- ?(?:Init |Destroy )?(START|COMPLETE)"
)
_END = r"(\d{1,7})(?:\[([0-9a-f]{1,12})\])?"
_CHANNEL = re.compile(
    rf"(?:Channel|Ring) \d+(?:/\d+)? : {_END} -> {_END} (?:\[(send|receive)\] )?via (\S[^\r\n]{{0,80}})"
)
_SET = re.compile(r"(NCCL_[A-Z0-9_]{1,60}) set (?:by environment )?to ([^\r\n]{1,200})")
_NET_IB = re.compile(r"NET/IB ?: (?:Using )?\[\d.*")
#: ``[0]mlx5_2:1/RoCE`` in the list of all, ``[0] mlx5_2:uverbs2:1/RoCE … speed=100000`` one by one since 2.27.
_HCA = re.compile(
    r"\[(\d{1,3})\] ?([A-Za-z0-9_.-]{1,64}):(?:[A-Za-z0-9_.-]*:)?(\d{1,3})/(IB|RoCE)"
    r"(?: provider=\S{1,40} speed=(\d{1,9}))?"
)
_DEVICE = re.compile(
    r"comm 0x[0-9a-f]{1,16} rank (\d{1,7}) nranks (\d{1,7}) cudaDev \d{1,3}"
    r"(?: nvmlDev (\d{1,3}))? busId ([0-9a-f]{1,12})"
    r"(?: commId (0x[0-9a-f]{1,16}))?(?: - (?:Init|Destroy) (START|COMPLETE))?"
)
_COLLNET = re.compile(r"CollNet \d+(?:/\d+)? : \d{1,7} \[(?:send|receive)\] via (COLLNET/[^\r\n]{1,80})")
_NVLS = re.compile(r"NVLS multicast support is (not )?available on dev \d")
_CONNECTED = re.compile(r"Connected (all rings|all trees|binomial trees|NVLS tree|Collnet Chains)")
#: "speed" before 2.14.
_PATTERN = re.compile(
    r"Pattern (\d{1,2}), crossNic \d, nChannels (\d{1,3}), (?:bw|speed) (\d{1,6}\.\d{1,9})/(\d{1,6}\.\d{1,9}),"
    r" type ([A-Z0-9]{2,4})/([A-Z0-9]{2,4})"
)
_HOSTS = re.compile(r"nRanks \d{1,7} nNodes (\d{1,7}) localRanks")
_NETWORK = re.compile(r"Using network ([^\r\n]{1,60})")
_NO_GDR = re.compile(r"GPU Direct RDMA Disabled for HCA \d{1,3} '([^']{1,64})'")
_REFUSED = re.compile(r"P2P is disabled between connected GPUs (\d{1,3}) and (\d{1,3})")
_SOCKETS = re.compile(r"NET/Socket: Using (\d{1,3}) threads and (\d{1,3}) sockets per thread")
_NO_CUMEM_HOST = "cuMem host allocations do not appear to be working"
_NO_VERBS = "Failed to open libibverbs.so"
_NO_IB = "NET/IB : No device found"
_NO_PROVIDER = "Could not find any optimal provider"

#: Lines without any of these words are ignored.
_WORDS = re.compile(
    r" via |NCCL version|NCCL_[A-Z0-9_]{1,60} set |NET/|Using network| busId | nRanks |GPU Direct RDMA Disabled"
    rf"|P2P is disabled|{re.escape(_NO_VERBS)}|{_NO_CUMEM_HOST}|NVLS multicast|Connected |Pattern \d"
    rf"|Bootstrap ?: Using|cudaDriverVersion|{_NO_PROVIDER}|[Ll]oaded .{{3,30}} plugin |Using tuner plugin "
    r"| coll channels|COMPLETE"
)


def settings_in(text: str) -> dict[str, str]:
    """Return the variables that NCCL reports to have read, as the environment or nccl.conf gave them."""
    return {found[1]: found[2].strip().removesuffix(".") for found in _SET.finditer(text)}


def version_in(text: str) -> str | None:
    """Return NCCL's version, or None."""
    found = _VERSION.search(text)
    return found[1] if found else None


def parse_nccl_log(text: str) -> NcclTransportFact:
    """Parse the INFO lines of one or more ranks; other lines are ignored."""
    settings = settings_in(text)
    devices = list(_DEVICE.finditer(text))
    network = _NETWORK.search(text)
    version = _VERSION.search(text)
    inits = list(_INIT.finditer(text))
    driver, sockets = _DRIVER.search(text), _SOCKETS.search(text)
    nvls = {found[1] is None for found in _NVLS.finditer(text)}
    complete = {init.groups()[:3]: init for init in inits if init[4] == "COMPLETE"}.values()
    return NcclTransportFact(
        version=version[1] if version else None,
        cuda=version[2] if version else None,
        transports=_once(_transport(found) for found in _CHANNEL.finditer(text)),
        p2p_level=settings.get("NCCL_P2P_LEVEL"),
        p2p_disable=settings.get("NCCL_P2P_DISABLE"),
        hcas=_once(
            Hca(index=int(hca[1]), name=hca[2], link_layer=hca[4], speed_mbps=int(hca[5]) if hca[5] else None)
            for line in _NET_IB.finditer(text)
            for hca in _HCA.finditer(line[0])
        ),
        settings=settings,
        devices=_devices(devices),
        comm_sizes=_once(int(found[2]) for found in devices) or _once(int(init[3]) for init in complete),
        hosts=_once(int(found[1]) for found in _HOSTS.finditer(text)),
        network=network[1].strip() if network else None,
        no_gpu_direct=_once(found[1] for found in _NO_GDR.finditer(text)),
        refused=_once((int(found[1]), int(found[2])) for found in _REFUSED.finditer(text)),
        no_ib_device=_NO_IB in text,
        no_verbs_library=_NO_VERBS in text,
        nvls=nvls.pop() if len(nvls) == 1 else None,
        collnet=_once(found[1].strip() for found in _COLLNET.finditer(text)),
        connected=_once(found[1] for found in _CONNECTED.finditer(text)),
        inits=_inits(devices),
        patterns=_once(_pattern(found) for found in _PATTERN.finditer(text)),
        sockets=(int(sockets[1]), int(sockets[2])) if sockets else None,
        interfaces=_once(found[1] for found in _BOOTSTRAP.finditer(text)),
        no_cumem_host=_NO_CUMEM_HOST in text,
        driver_cuda=f"{int(driver[1]) // 1000}.{int(driver[1]) % 1000 // 10}" if driver else None,  # 12040 is 12.4
        sockets_over=_once(name[1] for found in _NET_SOCKET.finditer(text) for name in _INTERFACE.finditer(found[1])),
        plugins=_once(found[1].strip() for found in _PLUGIN.finditer(text)),
        no_provider=_NO_PROVIDER in text,
        channels=max((int(found[1]) for found in _CHANNELS.finditer(f"\n{text}")), default=None),
        inits_begun=len({init.groups()[:3] for init in inits}),
        inits_complete=len(complete),
    )


def _inits(devices: Iterable[re.Match[str]]) -> tuple[CommInit, ...]:
    found: dict[tuple[str, int], CommInit] = {}
    for device in devices:
        if device[5] and device[6]:
            key = (device[5], int(device[1]))
            complete = device[6] == "COMPLETE" or (key in found and found[key].complete)
            found[key] = CommInit(rank=key[1], ranks=int(device[2]), comm_id=key[0], complete=complete)
    return tuple(found.values())


def _pattern(found: re.Match[str]) -> Pattern:
    return Pattern(
        pattern=int(found[1]),
        channels=int(found[2]),
        gb_per_s_within=float(found[3]),
        gb_per_s_between=float(found[4]),
        path_within=found[5],
        path_between=found[6],
    )


def _once(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _transport(found: re.Match[str]) -> Transport:
    return Transport(
        from_rank=int(found[1]),
        to_rank=int(found[3]),
        via=found[6].strip(),
        from_gpu=_nvml_index(found[2]),
        to_gpu=_nvml_index(found[4]),
        end=found[5],
    )


def _devices(lines: Iterable[re.Match[str]]) -> tuple[RankDevice, ...]:
    """Return each rank's GPU once. The line "Destroy COMPLETE" has no NVML number (2.27.5)."""
    found: dict[tuple[str, str], str | None] = {}
    for rank, nvml, bus_id in (line.group(1, 3, 4) for line in lines):
        found[rank, bus_id] = found.get((rank, bus_id)) or nvml
    return tuple(
        RankDevice(rank=int(rank), nvml=int(nvml) if nvml else None, bus_id=bus_id)
        for (rank, bus_id), nvml in found.items()
    )


def _nvml_index(bracket: str | None) -> int | None:
    """Return the GPU's number, or None for a bus id, which has at least three digits."""
    return int(bracket) if bracket is not None and len(bracket) <= 2 and bracket.isdecimal() else None


#: Kept of one rank: 200 pairs. In a world of thousands, these are each rank's first connections, from its rings.
MOST_CHARACTERS = 12_000
#: Only the list of HCAs is longer; NCCL itself cuts a line at 1024.
_LONGEST_LINE = 1100
_PREFIX = re.compile(r"^.{0,200}?NCCL INFO ")
_CHANNEL_NUMBER = re.compile(r"(?:Channel|Ring|CollNet) (\d{1,5}(?:/\d{1,5})?) : ")


def digest(lines: Iterable[str]) -> str:
    """Return the lines that parse_nccl_log reads, without prefix, each pair and transport once.

    A rank of an ordinary job writes 50 KB to 1 MB, nearly all about the same pairs on further channels. The digest is
    small enough to keep for every rank::

        wk:8811:8840 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
        wk:8811:8840 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM      (the same pair again)
        wk:8811:8840 [0] NCCL INFO + PCI[24.0] - GPU/0-1b000 (0)                  (the topology that NCCL saw)

    becomes ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``.
    """
    kept: list[str] = []
    pairs: set[str] = set()
    room = MOST_CHARACTERS
    for whole_line in lines:
        line = whole_line[:_LONGEST_LINE]
        if not _WORDS.search(line):
            continue
        text = _PREFIX.sub("", line.rstrip(), count=1)
        pair = _CHANNEL_NUMBER.sub("", text, count=1)
        if pair in pairs:
            continue
        room -= len(text) + 1
        if room < 0:
            break
        pairs.add(pair)
        kept.append(text)
    return "\n".join(kept)
