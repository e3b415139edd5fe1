"""NCCL's topology file, which NCCL_TOPO_DUMP_FILE writes and providers ship for NCCL_TOPO_FILE.

    <system version="1">
      <cpu numaid="0" affinity="00000000,ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
        <pci busid="0000:16:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
          <pci busid="0000:18:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
            <gpu dev="0" sm="90" rank="0" gdr="1">
              <nvlink target="0000:07:00.0" count="18" tclass="0x068000"/>
            </gpu>
          </pci>
          <pci busid="0000:19:00.0" class="0x020700">
            <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0xa87cb10003e1a258" gdr="1"/></nic>
          </pci>
        </pci>
      </cpu>
    </system>

Version 1 is NVIDIA's (src/graph/xml.cc), version 2 is AMD's (RCCL) with xgmi instead of nvlink. A pci that contains
others is an entire switch. Host bridges are not in the file: a path that nvidia-smi calls NODE is PHB here, as in NCCL.
GPUs are numbered by ``dev``, or by bus id without it, as NVML counts them. A network device with a guid of zero is an
interface for NCCL's sockets, not an RDMA device.

Document types are refused: they may define entities that grow without bound or read local files. A text with a document
type is not even passed to the XML parser.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Literal
from xml.parsers import expat

from ddp_doctor.checks.node.topology.formats.topo_matrix import asymmetries, nic_names
from ddp_doctor.checks.node.topology.formats.topo_rows import TopologyError
from ddp_doctor.facts.node.topology import PciDevice, RocmTopologyFact, TopologyFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.error_text import quoted
from ddp_doctor.parse.pci import is_bus_id, link_code
from ddp_doctor.wording.nodes import first_names

MOST_CHARACTERS = 1024 * 1024
MOST_TAGS = 20_000
DEEPEST = 64

_FORBIDDEN = re.compile(r"<!\s*(?:DOCTYPE|ENTITY)", re.IGNORECASE)


@dataclass
class Tag:
    """An XML element."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list["Tag"] = field(default_factory=list)

    def named(self, *names: str) -> Iterator["Tag"]:
        """Yield the children with these names, in order."""
        return (child for child in self.children if child.name in names)

    def get(self, name: str) -> str:
        """Return an attribute, or "" if it is missing."""
        return self.attributes.get(name, "").strip()


def parse_xml(text: str, first_line: int = 1) -> Tag:
    """Return the root of a text that starts in ``first_line``, without comments and text. Raises TopologyError."""
    forbidden = _FORBIDDEN.search(text)
    if forbidden:
        line = first_line + text.count("\n", 0, forbidden.start())
        raise TopologyError("the file has a DOCTYPE or ENTITY declaration; remove it", line)
    if len(text) > MOST_CHARACTERS:
        raise TopologyError(
            f"the file is larger than {MOST_CHARACTERS // 1024} KiB, the size limit for a topology file", first_line
        )
    builder = _Builder(first_line)
    try:
        builder.parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise TopologyError(
            f"the file is not XML: {expat.ErrorString(error.code)}", first_line + error.lineno - 1
        ) from None
    return builder.root


class _Builder:
    """Collects what the parser reports."""

    def __init__(self, first_line: int) -> None:
        self._before = first_line - 1
        self._open: list[Tag] = []
        self._count = 0
        self._root: Tag | None = None
        self.parser = expat.ParserCreate("utf-8")  # overrides the encoding that the text declares
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end

    @property
    def root(self) -> Tag:
        """Return the outermost tag, which a completely parsed text always has."""
        assert self._root is not None
        return self._root

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        tag = Tag(name, attributes, self._before + self.parser.CurrentLineNumber)
        self._count += 1
        if self._count > MOST_TAGS or len(self._open) >= DEEPEST:
            raise TopologyError(
                f"the file exceeds a limit for topology files: {MOST_TAGS} tags, nested at most {DEEPEST} deep",
                tag.line,
            )
        if self._open:
            self._open[-1].children.append(tag)
        else:
            self._root = tag
        self._open.append(tag)

    def _end(self, _name: str) -> None:
        self._open.pop()


_START = re.compile(r"<system(?=\s[^<>]{0,200}\bversion\s*=)")
_END = "</system>"
_VERSIONS = {"1": "NCCL", "2": "RCCL"}
#: PCI classes: display (also 0x0380, as AMD's), network, and bridges, among them NVSwitch.
_GPU, _NETWORK, _NVSWITCH = "0x03", "0x02", "0x0680"
_LONGEST_LINE_SEARCHED = 100_000
_VENDOR_OF_ARCH = {"arm64": "ARM"}


def find_nccl_topologies(lines: Sequence[str]) -> Iterator[tuple[range, TopologyFact | RocmTopologyFact]]:
    """Yield the hosts of the files in plain lines, each with the lines of its file. Raises TopologyError."""
    at = 0
    while at < len(lines):
        start = _START.search(lines[at][:_LONGEST_LINE_SEARCHED])
        if start is None:
            at += 1
            continue
        first = lines[at][start.start() :]  # the text before it may be the end of another file
        last = at if _END in first else next((line for line in range(at + 1, len(lines)) if _END in lines[line]), None)
        if last is None:
            raise TopologyError("the topology file that starts here is truncated", at + 1, lines[at])
        end = last + 1
        text = "\n".join((first, *lines[at + 1 : end]))
        for host in _hosts(text[: text.index(_END) + len(_END)], at + 1):
            yield range(at, end), host
        at = end


def _hosts(text: str, first_line: int) -> Iterator[TopologyFact | RocmTopologyFact]:
    system = parse_xml(text, first_line)
    if system.get("version") not in _VERSIONS:
        reason = f"version {system.get('version')[:20]!a} of NCCL's topology file is not known"
        raise TopologyError(reason, system.line)
    cpus = grouped((cpu.get("host_hash"), cpu) for cpu in system.named("cpu"))
    if not cpus:
        raise TopologyError("the topology file has no <cpu> tag", system.line)
    for alike in cpus.values():
        yield _Host(alike).fact()


@dataclass
class _Gpu:
    """A GPU's device, and its links by target: the bus id of a GPU, or "switch"."""

    device: PciDevice
    dev: int | None
    links: dict[str, int]
    amd: bool
    c2c: bool = False


@dataclass
class _Host:
    """The data collected about one host."""

    cpus: Sequence[Tag]
    gpus: list[_Gpu] = field(default_factory=list)
    nics: list[tuple[PciDevice, str]] = field(default_factory=list)  # "" if the name is unknown
    nets: list[PciDevice] = field(default_factory=list)
    unknown: list[Tag] = field(default_factory=list)
    places: dict[str, Tag] = field(default_factory=dict)

    def fact(self) -> TopologyFact | RocmTopologyFact:
        for cpu in self.cpus:
            for pci in cpu.named("pci"):
                self._add(pci, cpu, ())
        if not self.gpus:
            tag = next(iter(self.unknown), self.cpus[0])
            raise TopologyError("the file does not show which of its PCI devices are GPUs", tag.line)
        gpus = self._named_gpus()
        return _of_amd(gpus) if any(gpu.amd for gpu in gpus) else self._topology(gpus)

    # --- the tree --------------------------------------------------------------------------------

    def _add(self, pci: Tag, cpu: Tag, above: tuple[str, ...]) -> None:
        bus_id = pci.get("busid").lower()
        if not is_bus_id(bus_id):
            raise TopologyError(f"{quoted(pci.get('busid'))} is not a PCI address such as 0000:3b:00.0", pci.line)
        if self.places.setdefault(bus_id, pci) is not pci:
            raise TopologyError(f"PCI address {bus_id} appears twice in the file", pci.line)
        below = list(pci.named("pci"))
        for child in below:
            # The file has no separate entry for the port of the switch.
            self._add(child, cpu, (*above, bus_id, f"{bus_id}>{child.get('busid').lower()}"))
        kind = pci.get("class").lower()
        gpu, nic = next(pci.named("gpu"), None), next(pci.named("nic"), None)
        if gpu is not None or kind.startswith(_GPU):
            self.gpus.append(_gpu(pci, gpu, _device(pci, cpu, above, "gpu")))
        elif nic is not None or kind.startswith(_NETWORK):
            self._add_network(pci, cpu, above, nic)
        elif not below and not kind:
            self.unknown.append(pci)

    def _add_network(self, pci: Tag, cpu: Tag, above: tuple[str, ...], nic: Tag | None) -> None:
        nets = list(nic.named("net")) if nic is not None else []
        rdma = dict.fromkeys(net.get("name") for net in nets if not re.fullmatch(r"0x0+|0", net.get("guid")))
        for name in rdma or ([] if nets else [""]):
            self.nics.append((_device(pci, cpu, above, "nic"), name))
        if nets and not rdma:
            self.nets.append(_device(pci, cpu, above, "net", nets[0].get("name")[:64]))

    def _named_gpus(self) -> list[_Gpu]:
        numbers = [gpu.dev for gpu in self.gpus]
        are_numbered = None not in numbers and len(set(numbers)) == len(numbers)
        ordered = sorted(self.gpus, key=lambda gpu: (gpu.dev or 0, "") if are_numbered else (0, gpu.device.bus_id))
        for at, gpu in enumerate(ordered):
            gpu.device = gpu.device.model_copy(update={"name": f"GPU{gpu.dev if are_numbered else at}"})
        return ordered

    # --- the matrix ------------------------------------------------------------------------------

    def _topology(self, gpus: Sequence[_Gpu]) -> TopologyFact:
        nics = [device.model_copy(update={"name": f"NIC{at}"}) for at, (device, _) in enumerate(self.nics)]
        columns = [*(gpu.device for gpu in gpus), *nics]
        links = {
            column.name: {two.name: link_code(column, two) for two in columns if two is not column}
            for column in columns
        }
        for gpu, peer in permutations(gpus, 2):  # the first GPU's NVLinks to the other, or both GPUs' links to NVSwitch
            through_switch = min(gpu.links.get("switch", 0), peer.links.get("switch", 0))
            count = gpu.links.get(peer.device.bus_id, 0) or through_switch
            if count:
                links[gpu.device.name][peer.device.name] = f"NV{count}"
        legend = [(nic.name, name) for nic, (_, name) in zip(nics, self.nics, strict=True) if name]
        named, warnings = nic_names([column for column, _ in legend], legend)
        masks = {cpu.get("numaid"): _cpus(cpu.get("affinity")) for cpu in self.cpus}
        nodes = {gpu.device.name: str(gpu.device.numa_node) for gpu in gpus}
        vendors = {cpu.get("vendor") or _VENDOR_OF_ARCH.get(cpu.get("arch"), "") for cpu in self.cpus}
        vendor = vendors.pop() if len(vendors) == 1 else ""
        return TopologyFact(
            gpus=tuple(gpu.device.name for gpu in gpus),
            nics={nic.name: named.get(nic.name, nic.name) for nic in nics},
            links=links,
            cpu_affinity={name: masks.get(node) for name, node in nodes.items()},
            numa_affinity={name: "N/A" if node.startswith("-") else node for name, node in nodes.items()},
            gpu_numa_id=dict.fromkeys(nodes),
            warnings=(*self._doubts(gpus), *warnings, *asymmetries(list(links), links)),
            cpu_vendor=vendor if re.fullmatch(r"[A-Za-z ]{1,20}", vendor) else None,
            source="nccl-xml",
            pci=(*columns, *self.nets),
            c2c_gpus=tuple(gpu.device.name for gpu in gpus if gpu.c2c),
            # The file does not show NVLinks of GPUs that NCCL did not examine.
            nvlink_told=any(gpu.dev is not None for gpu in gpus) and not _to_themselves(gpus),
        )

    def _doubts(self, gpus: Sequence[_Gpu]) -> Iterator[str]:
        if all(gpu.dev is None for gpu in gpus):
            yield "the file lists PCI links only; NVLinks, if there are any, are not in it"
        if self.unknown:
            yield f"PCI devices without a class are ignored: {_some(tag.get('busid') for tag in self.unknown)}"
        if own := _to_themselves(gpus):
            yield f"NVLinks lead from a GPU to itself, so it is not known which they join: {_some(own)}"


def _of_amd(gpus: Sequence[_Gpu]) -> RocmTopologyFact:
    """Return the fact that rocm-smi would give for these GPUs."""
    devices = [gpu.device for gpu in gpus]
    return RocmTopologyFact(
        gpus=tuple(device.name for device in devices),
        link_type={
            gpu.device.name: {
                two.name: "XGMI" if two.bus_id in gpu.links else "PCIE" for two in devices if two is not gpu.device
            }
            for gpu in gpus
        },
        numa_node={device.name: device.numa_node for device in devices if device.numa_node is not None},
    )


def _device(
    pci: Tag, cpu: Tag, above: tuple[str, ...], kind: Literal["gpu", "nic", "net"], name: str = ""
) -> PciDevice:
    node, width, speed = cpu.get("numaid"), pci.get("link_width"), pci.get("link_speed")
    if not re.fullmatch(r"-?[0-9]{1,6}", node):
        raise TopologyError(f"{quoted(node)} is not a NUMA node; expected an integer", cpu.line)
    return PciDevice(
        bus_id=pci.get("busid").lower(),
        name=name,
        kind=kind,
        root=f"cpu{node}",
        bridges=above,
        numa_node=int(node),
        link_speed=speed if re.fullmatch(r"[0-9.]{1,6} GT/s(?: PCIe)?", speed) else None,
        link_width=int(width) if re.fullmatch(r"[1-9][0-9]{0,2}", width) else None,
    )


def _gpu(pci: Tag, gpu: Tag | None, device: PciDevice) -> _Gpu:
    links: dict[str, int] = {}
    own = gpu if gpu is not None else Tag("gpu", {}, pci.line)
    for link in own.named("nvlink", "xgmi"):
        count = link.get("count")
        if not re.fullmatch(r"[0-9]{1,3}", count):
            raise TopologyError(f"{quoted(count)} is not a link count; expected an integer from 0 to 999", link.line)
        switch = link.get("tclass").lower().startswith(_NVSWITCH)
        target = "switch" if switch else link.get("target").lower()
        links[target] = links.get(target, 0) + int(count)
    dev = own.get("dev")
    is_amd = next(own.named("xgmi"), None) is not None or "gcn" in own.attributes or pci.get("vendor") == "0x1002"
    c2c = next(own.named("c2c"), None) is not None
    return _Gpu(device, int(dev) if re.fullmatch(r"[0-9]{1,4}", dev) else None, links, is_amd, c2c)


def _to_themselves(gpus: Sequence[_Gpu]) -> list[str]:
    return [gpu.device.name for gpu in gpus if gpu.device.bus_id in gpu.links]


def _cpus(mask: str) -> str | None:
    """Return a mask of 32-bit words, the highest first, as a list: "00000001,ffffffff" is "0-32"."""
    if not re.fullmatch(r"[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{8}){0,255}", mask):
        return None
    bits = f"{int(mask.replace(',', ''), 16):b}"[::-1]
    spans = ((run.start(), run.end() - 1) for run in re.finditer("1+", bits))
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in spans) or None


def _some(names: Iterator[str] | Sequence[str]) -> str:
    return first_names([name[:20] for name in names], 4)
