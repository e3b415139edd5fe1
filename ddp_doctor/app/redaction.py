"""Redact a recording: replace hosts, users, addresses, paths and serial numbers, and keep the fault.

    gpu017.cluster.corp at 10.31.7.12/24, /home/alice/llm/train.py   becomes
    host1.domain1 at 10.0.0.12/24, /home/user1/dir1/file1.py

The same name always has the same replacement, and common parts of names stay common: two addresses share as many bits,
two GPUs' UUIDs as many digits, two paths the same directories. Numbers are assigned in the order of appearance, so
redacting a redacted recording does not change it. Common names (/usr, site-packages/torch, 127.0.0.1) are kept.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

from ddp_doctor.app.outcome import UsageError
from ddp_doctor.features import recorded_by
from ddp_doctor.model.base import Frozen, Json
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.hostlist import expand

#: Fields and variables whose value is a host's name, with or without a port.
_HOST_FIELDS = {"hostname", "host", "endpoint_host", "expected_hosts", "peer_node", "head"}
_HOST_VARIABLES = frozenset(
    """
    HOSTNAME MASTER_ADDR PET_MASTER_ADDR PET_RDZV_ENDPOINT SLURMD_NODENAME SLURM_SUBMIT_HOST
    SLURM_JOB_NODELIST SLURM_NODELIST SLURM_STEP_NODELIST SLURM_LAUNCH_NODE_IPADDR
    """.split()  # noqa: SIM905  a list of words
)
_USER_VARIABLES = {"USER", "LOGNAME", "SLURM_JOB_USER", "SLURM_JOB_ACCOUNT", "SLURM_CLUSTER_NAME"}
#: Paths as users typed them, which may be relative and contain spaces.
_PATH_FIELDS = {"data", "topology"}
#: Values of ddp-doctor, a launcher or a vendor, never names of a site.
_OWN_FIELDS = {"kind", "status", "check", "checks", "schema_version", "run_id", "launcher", "backend"}
#: Common names, and names that ddp-doctor uses for other things.
_EVERYBODYS = frozenset(
    """
    localhost localhost.localdomain root user nobody none node rank gpu cpu host head master worker server
    gloo nccl mpi slurm torchrun plain lo eth0
    """.split()  # noqa: SIM905  a list of words
)
#: The first directory of paths that belong to the system.
_SYSTEM = {"usr", "lib", "lib32", "lib64", "bin", "sbin", "etc", "proc", "sys", "dev", "run", "boot"}
_HOMES = {"home", "Users"}
#: Directories and files that are not names of a site.
_PUBLIC = frozenset(
    """
    home Users root opt tmp var mnt srv log spool cache src bin lib lib64 venv .venv env envs conda miniconda3
    site-packages dist-packages torch nvidia nccl ddp-doctor ddp_doctor amazon hpcx ofi-nccl aws-ofi-nccl
    .nccl.conf nccl.conf pytorch csrc third_party gloo __w sitecustomize.py usercustomize.py torch.py
    """.split()  # noqa: SIM905  a list of words
).union(f"{module}.py" for module in sys.stdlib_module_names)
_PACKAGES = {"torch", "nvidia", "numpy", "ddp_doctor", "torchvision", "psutil", "pynvml", "pydantic", "rich", "typer"}
_LIBRARY = re.compile(r"lib(?:nccl|cuda|cudart|cudnn|nvidia|nvrtc|torch|c10|gloo|ibverbs|mlx\d|efa|mpi|ucx)[\w.+-]*")
_PYTHON = re.compile(r"python\d(\.\d+)?|<\w+>")

_PATH = re.compile(r"(?<![\w./~-])(?:/[\w.+@%=~-]+)+/?")
_FILE = re.compile(r"(?<![\w./-])[\w-]+\.(?:py|sh|yaml|yml|json|toml|pt|log)(?![\w-])")
_UUID = re.compile(
    r"(?<![0-9a-f])(?<![0-9a-f]-)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])"
    r"|(?<=GPU-)[0-9a-f]{2,8}(?:-[0-9a-f]{1,4}){0,3}(?:-[0-9a-f]{1,12})?(?![\w-])"  # as CUDA_VISIBLE_DEVICES takes them
)
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){5,19}[0-9a-f]{2}(?![\w:])", re.IGNORECASE)
_GUID = re.compile(r"(?<![\w:.])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![\w:.])", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_IPV6 = re.compile(
    r"(?<![\w:.])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?:\d?\.\d{1,3}\.\d{1,3}\.\d{1,3})?(?![\w:])", re.IGNORECASE
)
_USER_AT = re.compile(r"(?<![\w.+-])([a-z_][\w.-]*)@(?=[a-z])", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
#: Other users' programs on a host are private.
_DROPPED_FIELDS = {"busiest"}
_SERIAL_FIELDS = {"serial", "board_serial", "asset_tag"}
_AZURE = "7783-7084-3265-9085-8269-3286-77"  # the asset tag of every machine of Azure
#: Addresses in these ranges stay in them.
_RANGES = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10")))
#: First bytes for replaced addresses: networks without a special meaning.
_FIRST_BYTES = [number for number in range(20, 190) if number not in (100, 127, 169, 172)]
_UNIQUE_LOCAL = 0xFC >> 1  # fc00::/7


class _Numbers:
    """Replacements by kind, numbered in the order of appearance."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def given(self, kind: str, name: str) -> str | None:
        return self._given.get((kind, name))

    def of(self, kind: str, name: str) -> str:
        """Return ``host3`` for the third name of the kind "host"."""
        if (kind, name) not in self._given:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._given[kind, name] = f"{kind}{self._counts[kind]}"
        return self._given[kind, name]


class _Prefixes:
    """Replaces digit by digit, so that the common prefix of two texts keeps its length."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, str], dict[str, str]] = {}

    def of(self, kind: str, digits: str, alphabet: str) -> str:
        """Return the digits as others of the alphabet; the first that appears anywhere becomes the alphabet's first."""
        made = []
        for at, digit in enumerate(digits):
            known = self._next.setdefault((kind, digits[:at]), {})
            if digit not in known:
                known[digit] = alphabet[len(known)]
            made.append(known[digit])
        return "".join(made)


def redacted(recording: Recording) -> Recording:
    """Return the recording with other names. Raises UsageError if the result would be invalid."""
    data = recording.model_dump(mode="json")
    if (feature := recorded_by(recording.command)) is not None:
        for named in (each for reading in data["readings"] for each in (reading, reading["fact"]) if each):
            named |= {name: _as_path(named[name]) for name in feature.files if name in named}
    redaction = _Redaction(data)
    try:
        return Recording.model_validate(redaction.value(data))
    except ValueError as error:
        raise UsageError(
            "cannot redact the recording: the result would not be a valid recording; omit --redact"
        ) from error


def _as_path(file: str) -> str:
    """Return the name of a file as a path. No part of it is public: directories may be named after models."""
    parts = re.sub(r"[^\w.+@%=~/-]", "_", file.replace(":", "/")).lstrip("/")
    return f"/{parts}" if parts else ""


class _Redaction:
    """The replacements of names for one recording."""

    def __init__(self, data: Json) -> None:
        self._numbers = _Numbers()
        self._prefixes = _Prefixes()
        self._known: dict[str, str] = {}  # complete words of any text, in lower case
        self._recorded_fields = _recorded_fields(Frozen)
        strings = [*_strings(data)]
        for key, value in strings:
            for host in _host_names_in(key, value):
                self._learn_host(host)
        for key, value in strings:
            users = [value] if key in _USER_VARIABLES else []
            users += [found[1] for found in re.finditer(r"/(?:home|Users)/([\w.-]+)", value)]
            users += [found[1] for found in _USER_AT.finditer(value)]
            for user in users:
                if user not in _EVERYBODYS and user not in self._known:
                    self._known[user.lower()] = self._numbers.of("user", user)
        words = sorted((word for word in self._known if len(word) > 1), key=len, reverse=True)
        any_word = "|".join(map(re.escape, words)) or "(?!)"
        self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{any_word})(?![A-Za-z0-9])", re.IGNORECASE)
        for _, value in strings:  # a file may occur without its path before the path does
            self._text(value)

    def _learn_host(self, name: str) -> None:
        host, _, domain = name.partition(".")
        if name in _EVERYBODYS or host in _EVERYBODYS:
            return
        number = self._numbers.of("host", host)
        self._known[host.lower()] = number
        if domain:
            of_domain = self._numbers.of("domain", domain)
            self._known[name.lower()] = f"{number}.{of_domain}"
            if "." in domain:
                self._known[domain.lower()] = of_domain

    def value(self, value: Json, key: str = "") -> Json:
        if isinstance(value, dict):
            return {
                name if name in self._recorded_fields else self._text(name): self.value(below, name)
                for name, below in value.items()
            }
        if key in _DROPPED_FIELDS:
            return []
        if isinstance(value, list):
            return [self.value(below, key) for below in value]
        if not isinstance(value, str) or key in _OWN_FIELDS or "version" in key:
            return value
        return self._replacement_by_field(value, key) or self._text(value)

    def _replacement_by_field(self, value: str, key: str) -> str | None:
        if key in _SERIAL_FIELDS:
            return value if value == _AZURE or " " in value else self._numbers.of("serial", value)
        if key in _HOST_FIELDS and value.lower() in self._known:
            return self._known[value.lower()]  # however short
        if key in _PATH_FIELDS and value:
            return self._path(_as_path(value))
        if key.endswith("NODELIST"):
            with suppress(ValueError):
                return ",".join(self._text(host) for host in expand(value))
        return None

    def _text(self, text: str) -> str:
        text = _PATH.sub(lambda found: self._path(found[0]), text)
        text = _FILE.sub(lambda found: self._known_file(found[0]), text)
        text = _UUID.sub(lambda found: self._digits("uuid", found[0]), text)
        text = _MAC.sub(lambda found: self._digits("mac", found[0]), text)
        text = _GUID.sub(lambda found: self._digits("guid", found[0]), text)
        text = _IPV6.sub(lambda found: self._address(found[0]), text)
        text = _IPV4.sub(lambda found: self._address(found[0]), text)
        return self._words.sub(lambda found: self._known[found[0].lower()], text)

    def _path(self, path: str) -> str:
        parts = path.strip("/").split("/")
        if parts[0] in _SYSTEM:
            return path
        made, is_public = [], False
        for at, part in enumerate(parts):
            if at and parts[at - 1] in ("site-packages", "dist-packages"):
                is_public = part.partition(".")[0] in _PACKAGES
            elif at and _PYTHON.fullmatch(parts[at - 1]):
                is_public = True
            is_users = at == 1 and parts[0] in _HOMES
            made.append(part if is_public and not is_users else self._part(part, is_users=is_users))
            is_public = is_public and part not in ("site-packages", "dist-packages")
        return f"/{'/'.join(made)}{'/' * path.endswith('/')}"

    def _part(self, part: str, *, is_users: bool) -> str:
        if is_users:
            return part if part in _EVERYBODYS else self._numbers.of("user", part)
        if part in _PUBLIC or _LIBRARY.fullmatch(part) or _PYTHON.fullmatch(part) or not part.strip("."):
            return part
        _, dot, ending = part.rpartition(".")
        # NCCL_DEBUG_FILE=/logs/%h.%p.log
        filled_in = "".join(f".{mark}" for mark in re.findall("%[a-z]", part))
        if dot and re.fullmatch("[a-z]{1,5}", ending):
            return f"{self._numbers.of('file', part)}{filled_in}.{ending}"
        return f"{self._numbers.of('dir', part)}{filled_in}"

    def _known_file(self, name: str) -> str:
        """Return the replacement of a file without its path, if some path names it."""
        ending = name.rpartition(".")[2]
        given = self._numbers.given("file", name)
        return f"{given}.{ending}" if given else name

    def _digits(self, kind: str, text: str) -> str:
        """Replace hexadecimal digits in groups; the last byte of a hardware address is kept."""
        digits = re.sub("[^0-9a-f]", "", text.lower())
        end = len(digits) - (0 if kind == "uuid" else 2)
        made = iter(self._prefixes.of(kind, digits[:end], "0123456789abcdef") + digits[end:])
        return re.sub("[0-9A-Fa-f]", lambda _: next(made), text)

    def _address(self, text: str) -> str:
        try:
            address = ip_address(text)
        except ValueError:
            return text
        if isinstance(address, IPv4Address):
            return str(self._v4(address))
        made = self._v6(address)
        return made.exploded if text.count(":") == 7 and len(text) == 39 else str(made)

    def _v4(self, address: IPv4Address) -> IPv4Address:
        first = int(address) >> 24
        if address.is_loopback or first == 0 or address.is_multicast or first == 255:  # netmasks
            return address
        kept = next((network.prefixlen for network in _RANGES if address in network), 8)
        if not any(address in network for network in _RANGES):
            number = int(self._numbers.of("network", str(first)).removeprefix("network"))
            first = _FIRST_BYTES[(number - 1) % len(_FIRST_BYTES)]
        bits = f"{first:08b}{int(address) & 0xFFFFFF:024b}"
        made = bits[:kept] + self._prefixes.of(f"v4 {bits[:kept]}", bits[kept:24], "01") + bits[24:]
        return IPv4Address(int(made, 2))

    def _v6(self, address: IPv6Address) -> IPv6Address:
        if address.ipv4_mapped is not None:
            return IPv6Address(f"::ffff:{self._v4(address.ipv4_mapped)}")
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            return address
        kept = 64 if address.is_link_local else 8 if int(address) >> 121 == _UNIQUE_LOCAL else 3
        bits = f"{int(address):0128b}"
        made = bits[:kept] + self._prefixes.of(f"v6 {bits[:kept]}", bits[kept:120], "01") + bits[120:]
        return IPv6Address(int(made, 2))


def _strings(value: Json, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text with the name of its field or variable, in order; also the names of fields themselves."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield "", name
            yield from _strings(below, name)
    elif isinstance(value, list):
        for below in value:
            yield from _strings(below, key)
    elif isinstance(value, str) and key not in _OWN_FIELDS and "version" not in key:
        yield key, value


def _host_names_in(key: str, value: str) -> Iterator[str]:
    if key not in _HOST_FIELDS | _HOST_VARIABLES:
        return
    names: tuple[str, ...] = (value,)
    with suppress(ValueError):
        names = expand(value) if key.endswith("NODELIST") else (value.partition(":")[0],)
    for name in names:
        try:
            ip_address(name)
        except ValueError:
            if _HOST.fullmatch(name):
                yield name


def _recorded_fields(model: type[Frozen]) -> frozenset[str]:
    return frozenset(model.model_fields).union(*(_recorded_fields(below) for below in model.__subclasses__()))
