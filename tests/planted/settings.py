"""Values of NCCL's variables: ddp-doctor's statement on each, and NCCL's interpretation.

A row was observed with the releases of tests/nccl_wheels; ``make planted-all`` repeats it, and
tests/planted/test_settings.py checks ddp-doctor's statements without NCCL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from ddp_doctor.knowledge.versions import release as parsed
from ddp_doctor.settings.effects import out_of_range
from ddp_doctor.settings.interactions import conflicts
from ddp_doctor.settings.values import misread
from tests.nccl_wheels import RELEASES, libnccl
from tests.planted.faults import WELL, end
from tests.planted.world import Machines, Ran

#: One rank; two ranks of a host; a rank on each of two hosts.
Where = Literal["one", "pair", "two"]
_RANKS = {"one": 1, "pair": 2, "two": 2}
_ASKED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET,TUNING"}
_NOTHING = "nothing"
ByRelease = Mapping[str, str]


@dataclass(frozen=True)
class Tried:
    """A tried value: ``nccl`` matches NCCL's line in the lines of ``shows``, "" if none; ``of``: exceptions.

    ``doctor`` is text of ddp-doctor, "nothing" if it reports no fault; ``doctor_of`` has exceptions. The keys of both
    are starts of releases. ``seen`` is False if NCCL passes the value on to the network card, or does not report it.
    ``base`` is always set; for a remedy ``before`` is a pattern of the line without the setting.
    """

    env: Mapping[str, str]
    where: Where
    shows: str
    nccl: str
    doctor: str = _NOTHING
    of: ByRelease = field(default_factory=dict)
    doctor_of: ByRelease = field(default_factory=dict)
    ends: str = WELL
    ends_of: ByRelease = field(default_factory=dict)
    base: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    seen: bool = True

    @property
    def name(self) -> str:
        return " ".join(f"{name}={value!r}" if " " in value else f"{name}={value}" for name, value in self.env.items())


def at(release: str, usual: str, of: ByRelease) -> str:
    """Return the value for a release."""
    return next((other for start, other in of.items() if release.startswith(start)), usual)


def doctor_says(env: Mapping[str, str], release: str) -> str:
    """Return ddp-doctor's statement on these settings with this NCCL."""
    nccl = parsed(release)
    found = [f"{name} {wrong.becomes}" for name, value in env.items() if (wrong := misread(name, value, nccl))]
    ranges = [f"{name} {beyond.says}" for name in env if not found and (beyond := out_of_range(name, env, nccl))]
    against = [f"{' and '.join(row.names)} {row.says}" for row in conflicts(env, nccl)]
    return "; ".join((*found, *ranges, *against)) or _NOTHING


_IB = r"NET/IB : (?:Using \[|No device)"
_NONE = "No device found"
_BOOTSTRAP = r"Bootstrap ?: "
_NO_INTERFACE = "no socket interface found"
_VIA = r"Channel \d+(?:/\d)? : 0\[0\] -> 1\[\d\] .*via"
_CHANNELS = "coll channels"
_SET = "set by environment"
_ODD = "is out of range ("
_REFUSED: dict[str, str] = {"2.21": WELL}
_NO_NUMBER = r"ATTN Invalid value \w+ for NCCL_\w+, using default"


def _hca(value: str, nccl: str, doctor: str = _NOTHING) -> Tried:
    return Tried({"NCCL_IB_HCA": value}, "one", _IB, nccl, doctor)


def _ifname(value: str, nccl: str, doctor: str = _NOTHING) -> Tried:
    refused = nccl == _NO_INTERFACE
    ends = ("5", {"2.21": "3"}) if refused else (WELL, {})
    return Tried({"NCCL_SOCKET_IFNAME": value}, "one", _BOOTSTRAP, nccl, doctor, ends=ends[0], ends_of=ends[1])


def _card(name: str, value: str) -> Tried:
    return Tried({name: value}, "two", f"{name} {_SET}", f"to {value}", _ODD, seen=False)


def _list(name: str, value: str, nccl: str, doctor: str, doctor_of: ByRelease | None = None) -> Tried:
    """Return the row of a list of algorithms or protocols that NCCL 2.21 accepts without a message."""
    return Tried(
        {name: value},
        "pair",
        "NCCL WARN",
        nccl,
        doctor,
        of={"2.21": ""},
        doctor_of=doctor_of or {},
        ends="5",
        ends_of=_REFUSED,
    )


def _channels(env: Mapping[str, str], nccl: str, doctor: str, of: ByRelease | None = None) -> Tried:
    return Tried(env, "pair", _CHANNELS, nccl, doctor, of=of or {})


_WORD = {"2.32": "is ignored"}
SETTINGS: tuple[Tried, ...] = (
    Tried(
        {"NCCL_IB_DISABLE": "true"},
        "one",
        f"NCCL_IB_DISABLE {_SET}|{_NO_NUMBER}",
        r"set by environment to 0\.",
        "is read as 0, so nothing is disabled",
        of={"2.32": "Invalid value true for NCCL_IB_DISABLE, using default 0"},
        doctor_of=_WORD,
    ),
    Tried(
        {"NCCL_NVLS_ENABLE": "off"},
        "pair",
        f"NCCL_NVLS_ENABLE {_SET}|{_NO_NUMBER}",
        r"set by environment to 0\.",
        of={"2.32": "Invalid value off for NCCL_NVLS_ENABLE, using default 2"},
        doctor_of=_WORD,
    ),
    Tried(
        {"NCCL_P2P_DISABLE": "true"}, "pair", _VIA, "via P2P", "is read as 0, so nothing is disabled", doctor_of=_WORD
    ),
    Tried({"NCCL_P2P_DISABLE": "2"}, "pair", _VIA, "via P2P", "does not disable P2P"),
    Tried({"NCCL_P2P_LEVEL": "sys"}, "pair", _VIA, "via P2P", "is ignored"),
    Tried({"NCCL_P2P_LEVEL": "FOO"}, "pair", _VIA, "via P2P", "is ignored"),
    Tried({"NCCL_P2P_LEVEL": "0"}, "pair", _VIA, "via SHM"),
    Tried({"NCCL_BUFFSIZE": "4MB"}, "pair", f"NCCL_BUFFSIZE {_SET}", r"to 4\.", "is read as 4", ends="SIGFPE"),
    Tried({"NCCL_BUFFSIZE": "0"}, "pair", f"NCCL_BUFFSIZE {_SET}", r"to 0\.", "too small", ends="SIGFPE"),
    _list("NCCL_ALGO", "garbage", "Unrecognized element token", "unknown word 'garbage'"),
    _list("NCCL_ALGO", "Ring,Foo", "Unrecognized element token", "unknown word 'Foo'"),
    _list("NCCL_PROTO", "LL256", "Unrecognized element token", "unknown word 'LL256'"),
    Tried(
        {"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "0"},
        "pair",
        "NCCL WARN",
        "[nN]o algorithm/protocol (nor symKernelId )?available",
        "without an algorithm",
        of={"2.21": ""},
        ends="5",
        ends_of=_REFUSED,
    ),
    Tried({"NCCL_ALGO": "ring"}, "pair", "AllReduce:", "Algo RING", of={"2.21": ""}),
    Tried({"NCCL_NET": "ib"}, "one", "Using network", "Using network IB"),
    Tried(
        {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"},
        "one",
        "NCCL WARN",
        "Failed to initialize any NET plugin",
        "leave NCCL without a network",
        of={"2.21": "network IB not found"},
        ends="5",
    ),
    _hca("mlx5_1", r"Using \[0\]mlx5_1:1/IB \[RO\]"),
    _hca("=mlx5_1", r"Using \[0\]mlx5_1:1/IB \[RO\]"),
    _hca("^mlx5_1", r"Using \[0\]mlx5_0:1/IB (?!.*mlx5_1:)"),
    _hca("^=mlx5_1", r"Using \[0\]mlx5_0:1/IB (?!.*mlx5_1:)"),
    _hca("=^mlx5_1", _NONE, "matches no device"),
    _hca("mlx5_0:2", _NONE),
    _hca("=mlx5_0:1,mlx5_1:1", r"Using \[0\]mlx5_0:1/IB \[1\]mlx5_1:1/IB \[RO\]"),
    _hca("mlx5_0,^mlx5_1", r"Using \[0\]mlx5_0:1/IB \[RO\]", "matches unintended devices"),
    _hca("mlx5_0, mlx5_1", r"Using \[0\]mlx5_0:1/IB \[RO\]", "matches unintended devices"),
    _hca("mlx5_0 mlx5_1", _NONE, "matches no device"),
    _hca("mlx5_*", _NONE, "matches no device"),
    _hca("'mlx5_0'", _NONE, "includes the surrounding characters"),
    _hca("MLX5_0", _NONE),
    _hca("m", r"Using \[0\]mlx5_0:1/IB .*\[8\]"),
    _ifname("eth", "Using eth0:10"),
    _ifname("=lo", "Using lo:127"),
    _ifname("^lo", "Using eth0:10"),
    _ifname("=et", _NO_INTERFACE),
    _ifname("et*", _NO_INTERFACE, "matches no device"),
    _ifname("=^lo", _NO_INTERFACE, "matches no device"),
    _ifname("^eth,lo", _NO_INTERFACE),
    _ifname("lo,^eth0", "Using lo:127", "matches unintended devices"),
    _ifname("eth0 lo", _NO_INTERFACE, "matches no device"),
    _ifname("10.77.0.1", _NO_INTERFACE, "matches no interface"),
    _ifname("e", "Using eth0:10", "is ignored"),
    _ifname("ETH0", _NO_INTERFACE),
    Tried({"NCCL_SOCKET_FAMILY": "foo"}, "one", _BOOTSTRAP, "Using eth0:10", "is ignored"),
    Tried({"NCCL_SOCKET_FAMILY": "af_inet6"}, "one", _BOOTSTRAP, "Using eth0:10", "is ignored"),
    Tried({"NCCL_SOCKET_FAMILY": "AF_INET6"}, "one", _BOOTSTRAP, "Using eth0:fe80"),
    Tried({"NCCL_DEBUG": "info"}, "one", "NCCL INFO NET", "NET"),
    Tried({"NCCL_DEBUG": "foo"}, "one", "NCCL", "", "is not a log level"),
    Tried(
        {"NCCL_DEBUG": "ATTN"},
        "one",
        "NCCL version",
        "",
        "is not a log level",
        of={"2.32": "NCCL version"},
        doctor_of={"2.32": _NOTHING},
    ),
    _channels({"NCCL_MIN_NCHANNELS": "100"}, "64 coll", _ODD, {"2.21": "32 coll"}),
    _channels({"NCCL_MIN_CTAS": "100"}, "64 coll", _ODD, {"2.21": "32 coll"}),
    _channels({"NCCL_MAX_NCHANNELS": "0"}, " 1 coll", _ODD),
    _channels({"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "2"}, " 8 coll", "contradict each other"),
    _channels({"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "2"}, " 2 coll", "contradict each other"),
    _channels({"NCCL_MIN_P2P_NCHANNELS": "8", "NCCL_MAX_P2P_NCHANNELS": "2"}, " 8 p2p", "contradict each other"),
    Tried({"NCCL_NVLS_ENABLE": "3"}, "pair", f"NCCL_NVLS_ENABLE {_SET}", r"to 3\.", _ODD),
    Tried(
        {"NCCL_SOCKET_NTHREADS": "100"},
        "two",
        "NCCL (WARN|ATTN) NET/Socket",
        "setting to 16",
        _ODD,
        base={"NCCL_NET": "Socket"},
    ),
    Tried(
        {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"},
        "two",
        "NCCL (WARN|ATTN) NET/Socket",
        "setting NCCL_NSOCKS_PERTHREAD to 4",
        "request 128 sockets",
        base={"NCCL_NET": "Socket"},
    ),
    Tried(
        {"NCCL_IB_QPS_PER_CONNECTION": "0"},
        "two",
        f"NCCL_IB_QPS_PER_CONNECTION {_SET}",
        r"to 0\.",
        _ODD,
        ends="SIGSEGV|SIGFPE|6",
    ),
    *(
        _card(name, value)
        for name, value in {
            "NCCL_IB_TIMEOUT": "40",
            "NCCL_IB_RETRY_CNT": "9",
            "NCCL_IB_TC": "300",
            "NCCL_IB_SL": "20",
            "NCCL_CROSS_NIC": "7",
            "NCCL_IB_PCI_RELAXED_ORDERING": "7",
        }.items()
    ),
)


def _remedy(env: Mapping[str, str], where: Where, shows: str, before: str, after: str, **more: Any) -> Tried:
    return Tried(env, where, shows, after, before=before, **more)


#: Settings that the doctor recommends, or says the effect of.
REMEDIES: tuple[Tried, ...] = (
    _remedy({"NCCL_P2P_DISABLE": "1"}, "pair", _VIA, "via P2P", "via SHM"),
    _remedy({"NCCL_P2P_LEVEL": "LOC"}, "pair", _VIA, "via P2P", "via SHM"),
    _remedy({"NCCL_SHM_DISABLE": "1"}, "pair", _VIA, "via SHM", "via NET/IB", base={"NCCL_P2P_DISABLE": "1"}),
    _remedy({"NCCL_CUMEM_ENABLE": "0"}, "pair", _VIA, "via P2P", "via P2P/IPC"),
    _remedy({"NCCL_NVLS_ENABLE": "0"}, "pair", _CHANNELS, r"\d+ nvls channels", " 0 nvls channels"),
    _remedy({"NCCL_ALGO": "Tree"}, "pair", "AllReduce:", "Algo RING", "Algo TREE", of={"2.21": ""}),
    _remedy({"NCCL_PROTO": "LL"}, "pair", "AllReduce:", "proto SIMPLE", "proto LL ", of={"2.21": ""}),
    _remedy({"NCCL_MIN_NCHANNELS": "32"}, "pair", _CHANNELS, "24 coll", "32 coll"),
    _remedy({"NCCL_MAX_NCHANNELS": "2"}, "pair", _CHANNELS, "24 coll", " 2 coll"),
    _remedy({"NCCL_MIN_CTAS": "32"}, "pair", _CHANNELS, "24 coll", "32 coll"),
    _remedy({"NCCL_MAX_CTAS": "2"}, "pair", _CHANNELS, "24 coll", " 2 coll"),
    _remedy({"NCCL_IB_DISABLE": "1"}, "two", _VIA, "via NET/IB", "via NET/Socket"),
    _remedy({"NCCL_NET": "Socket"}, "two", _VIA, "via NET/IB", "via NET/Socket"),
    _remedy({"NCCL_NET_GDR_LEVEL": "LOC"}, "two", _VIA, "via NET/IB", r"via NET/IB/\d+$"),
    _remedy({"NCCL_NET_GDR_READ": "0"}, "two", _VIA, "via NET/IB", r"via NET/IB/\d+$"),
    _remedy({"NCCL_IB_HCA": "=mlx5_1"}, "two", _IB, r"\[0\]mlx5_0:1", r"Using \[0\]mlx5_1:1/IB \[RO\]"),
    _remedy({"NCCL_SOCKET_IFNAME": "=lo"}, "one", _BOOTSTRAP, "Using eth0", "Using lo"),
    _remedy({"NCCL_IB_PCI_RELAXED_ORDERING": "0"}, "one", _IB, r"\[RO\]", r"(?<!\[RO\]); OOB"),
)


class Plants:
    """One simulated DGX H100, two of them, and the observations without any of the settings."""

    def __init__(self, one: Machines, two: Machines) -> None:
        self._hosts: Mapping[Where, Machines] = {"one": one, "pair": one, "two": two}
        self._plain: dict[tuple[object, ...], Ran] = {}

    def plain(self, row: Tried, release: str) -> Ran:
        key = (row.where, release, *row.base.items())
        if key not in self._plain:
            self._plain[key] = self._run(row, release, row.base)
        return self._plain[key]

    def tried(self, row: Tried, release: str) -> Ran:
        return self._run(row, release, {**row.base, **row.env})

    def _run(self, row: Tried, release: str, env: Mapping[str, str]) -> Ran:
        hosts, ranks = self._hosts[row.where], _RANKS[row.where]
        return hosts.run(libnccl(release), ranks, size=4 << 20, env={**_ASKED, **env})


@dataclass(frozen=True)
class Seen:
    """The observation of a release: NCCL's line without and with the setting, the ranks' exits, and the match."""

    release: str
    before: str
    line: str
    ends: str
    doctor: str
    as_recorded: bool


def seen(plants: Plants, row: Tried, release: str) -> Seen:
    ran = plants.tried(row, release)
    expected = at(release, row.nccl, row.of)
    line = _line(ran, row.shows, expected)
    ends = " ".join(dict.fromkeys(end(code) for code in ran.codes))
    is_so = bool(re.search(expected, line)) if expected else not line
    told = re.fullmatch(f"(?:{at(release, row.ends, row.ends_of)})(?: .*)?", ends) is not None
    if not row.before:
        says = doctor_says(row.env, release)
        return Seen(release, "", line, ends, says, is_so and told)
    before = _line(plants.plain(row, release), row.shows, row.before)
    was = bool(re.search(row.before, before)) or not expected
    return Seen(release, before, line, ends, "", is_so and told and was)


def _line(ran: Ran, shows: str, expected: str) -> str:
    lines = ran.lines(shows)
    line = next((line for line in lines if expected and re.search(expected, line)), next(iter(lines), ""))
    return re.sub(r"^\[\d\] ", "", line)


def page(plants: Plants) -> Iterator[str]:
    yield (
        "## Settings\n\nWhat the doctor says of a value, and what NCCL makes of it. Where NCCL only hands a number on"
        " to the network card, nothing of that can be seen here.\n"
    )
    yield "| setting | releases | the doctor | NCCL says | ranks end |\n|---|---|---|---|---|"
    counted: dict[str, int] = {}
    for row in SETTINGS:
        every = [seen(plants, row, release) for release in RELEASES]
        for one in every:
            what = "cannot be seen" if not row.seen else "as recorded" if one.as_recorded else "otherwise"
            counted[what] = counted.get(what, 0) + 1
        yield from _rows(row, every)
    yield f"\nRows times releases: {', '.join(f'{count} {what}' for what, count in counted.items())}.\n"
    yield "## Remedies\n\nDoes a setting change what NCCL does as the doctor promises?\n"
    yield "| setting | releases | NCCL without it | NCCL with it | ranks end |\n|---|---|---|---|---|"
    for row in REMEDIES:
        yield from _rows(row, [seen(plants, row, release) for release in RELEASES])


def _rows(row: Tried, every: list[Seen]) -> Iterator[str]:
    def alike(one: Seen) -> tuple[object, ...]:
        shape = re.sub(r"0x[0-9a-f]+|:\d+ \(|\w+\.cc:\d+", "", one.line)
        return shape, one.ends, one.doctor, one.before, one.as_recorded

    for _, group in groupby(every, key=alike):
        [first, *others] = group
        releases = ", ".join(one.release for one in (first, *others))
        left = first.before if row.before else first.doctor
        mark = "" if first.as_recorded or not row.seen else " **(otherwise than recorded)**"
        cells = (f"`{row.name}`", releases, left or _NOTHING, (first.line or _NOTHING) + mark, first.ends)
        yield f"| {' | '.join(cell.replace('|', '&#124;')[:220] for cell in cells)} |"
