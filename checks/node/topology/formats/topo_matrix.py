"""The output of ``nvidia-smi topo -m`` from every driver generation, parsed or refused with a reason.

            GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
    GPU0     X      SYS     PIX     0-31,64-95      0               N/A
    GPU1    SYS      X      SYS     32-63,96-127    1               N/A
    NIC0    PIX     SYS      X

    Legend: …

    NIC Legend:

      NIC0: mlx5_0

Known variants: SOC for SYS and no NUMA columns (2015-17), device names in the header instead of a NIC legend (up to
driver 520), tabs or the spaces they became, underlined headers, CRLF, log prefixes, quoted and numbered lines,
Markdown tables, prompts before and other output after, several hosts in one text, and a separator lost in copying.
Rows are identified by label and cells by count, never by position; the diagonal must be X. Everything else is refused,
never guessed. Cut or ambiguous parts are skipped with a warning if the links that are read are still certain.

The parser recognizes what nvidia-smi prints instead of a topology by its error messages and the headings of other
commands, which users paste by mistake. nvidia-smi itself garbles the NIC legend with 40 or more NICs
(``NIC1: MA ID``), and a pasted text may contain anything. A name ends up in a suggested NCCL_IB_HCA, so the parser
accepts only plausible device names; it reports the rest and does not use it.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ddp_doctor.checks.node.topology.formats.cpus import cpu_ranges
from ddp_doctor.checks.node.topology.formats.topo_affinity import CPU, GPU_NUMA, NUMA, Unclear, read_tails
from ddp_doctor.checks.node.topology.formats.topo_rows import DEVICE, GPU, Block, TopologyError, read_blocks
from ddp_doctor.facts.node.topology import TopologyMatrix
from ddp_doctor.knowledge.topology.link_codes import NUMBERED
from ddp_doctor.parse.text import plain_lines
from ddp_doctor.wording.nodes import first_names

_PORTS_ONLY = "{}, which has no paths; run nvidia-smi topo -m, and `ddp-doctor run --only rdma` there for the ports"
#: A network device in the outputs of ibstat, ibv_devinfo, ibstatus, rdma link and ibdev2netdev, and a port's state.
_PORT = re.compile(
    r"^\s*(?:CA '|hca_id:\s*|Infiniband device '|(?:[0-9/]+: )?link )?(?P<device>[a-z][a-z0-9_-]{1,30})\b"
    r"(?='$|'\s+port|$|/[0-9]+ state| port [0-9]+ ==>)"
)
_STATE = re.compile(r"\bstate:?\s+(?:[0-9]: |PORT_)?([A-Za-z]+)|\((Up|Down)\)\s*$", re.IGNORECASE)
_UP = ("ACTIVE", "UP", "LINKUP", "LINK_UP")
#: Pieces of text that are not a topology matrix, and their meaning; the first that occurs explains the input.
INSTEAD_OF_A_MATRIX: dict[str, str] = {
    "couldn't communicate with the NVIDIA driver": "nvidia-smi could not reach the NVIDIA driver on that host:"
    " its kernel module is not loaded",
    "Driver/library version mismatch": "the driver's library and the loaded kernel module are of different versions:"
    " reload the module or reboot",
    "Failed to initialize NVML": "NVML could not be initialized there; in a container the GPU may have been removed:"
    " restart the container",
    "GPU is lost": "a GPU of that host is lost: look for Xid 79 in its kernel log, then reboot",
    "has fallen off the bus": "a GPU of that host is lost: look for Xid 79 in its kernel log",
    "No devices were found": "nvidia-smi found no GPU on that host",
    "Insufficient Permissions": "the user has no permission to run nvidia-smi on that host",
    "nvidia-smi: command not found": "nvidia-smi is not installed on that host",
    "nvidia-smi: not found": "nvidia-smi is not installed on that host",
    "ROCm System Management Interface": "this is rocm-smi; AMD GPUs are not supported yet, measure with rccl-tests",
    "<system version=": "this is a topology file of NCCL, not the output of nvidia-smi topo -m",
    "= Status Ok": "this is the output of nvidia-smi topo -p2p; run nvidia-smi topo -m for the links",
    "Link 0:": "this looks like nvidia-smi nvlink; run nvidia-smi topo -m for the links",
    "| NVIDIA-SMI ": "this is plain nvidia-smi; run nvidia-smi topo -m for the links",
    "NVSMI LOG": "this is nvidia-smi -q; run nvidia-smi topo -m for the links, and `ddp-doctor run` there for the GPUs",
    "(UUID: GPU-": "this is a list of GPUs, as of nvidia-smi -L; run nvidia-smi topo -m for the links",
    "CA type:": "this is ibstat" + _PORTS_ONLY,
    "hca_id:": "this is ibv_devinfo" + _PORTS_ONLY,
    "Infiniband device '": "this is ibstatus" + _PORTS_ONLY,
    " physical_state ": "this is rdma link" + _PORTS_ONLY,
    " ==> ": "this is ibdev2netdev" + _PORTS_ONLY,
    "LINK TYPE TABLE": "this is amd-smi; AMD GPUs are not supported yet, measure with rccl-tests",
    "Machine (": "this is the output of lstopo; run nvidia-smi topo -m for the links",
    "\\tGPU0\\t": "the tabs and line breaks are escaped, as in JSON or a notebook: unescape them",
}
_LEGENDS = ("NIC Legend:", "= Self")
#: "GPU0,GPU1", "<td>GPU0</td><td>GPU1</td>".
_NAMES_IN_A_ROW = re.compile(r"GPU0[^\n]{1,20}GPU1\b")


_ENTRY = re.compile(r"(?<!\S)(NIC[0-9]{1,4}):\s*(.*?)\s*$")
_LONGEST_ENTRY = 500


def read_legend(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the entries as printed, column and name; another kind of line ends the legend."""
    entries: list[tuple[str, str]] = []
    inside = False
    for line in lines:
        if "NIC Legend" in line:
            inside = True
        elif inside and (found := _ENTRY.search(line[:_LONGEST_ENTRY])):
            entries.append((found[1], found[2]))
        elif inside and entries and line.strip():
            inside = False
    return entries


def nic_names(columns: Sequence[str], legend: Sequence[tuple[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Return the device of each NIC column, or the column itself if unknown; and the problems found."""
    names = {column: column for column in columns}
    texts_by_column: dict[str, set[str]] = {}
    for column, name in legend:
        texts_by_column.setdefault(column, set()).add(name)
    warnings = []
    for column, texts in texts_by_column.items():
        fault = _fault(column, texts, columns)
        if fault:
            warnings.append(fault)
        else:
            names[column] = min(texts)
    for name in [name for name, times in Counter(names.values()).items() if times > 1]:
        columns_of_it = [column for column in names if names[column] == name]
        warnings.append(f"the legend names {' and '.join(columns_of_it[:4])} alike: {name}")
        names.update({column: column for column in columns_of_it})
    unnamed = [column for column in columns if NUMBERED.fullmatch(column) and column not in texts_by_column]
    if unnamed:
        warnings.append(f"no legend names {unnamed[0]}" + (" and others" if len(unnamed) > 1 else ""))
    return names, warnings


def _fault(column: str, texts: set[str], columns: Sequence[str]) -> str | None:
    if column not in columns:
        return f"the legend names {column}, which has no column"
    if len(texts) > 1:
        return f"the legend names {column} twice, as {' and '.join(map(_quoted, sorted(texts)))}"
    text = min(texts)
    if DEVICE.fullmatch(text):
        return None
    return f"the legend's name of {column} is not a device name and is ignored: {_quoted(text)}"


def _quoted(text: str) -> str:
    return ascii(text[:40])


__all__ = ["TopologyError", "find_matrices", "parse_matrices", "parse_matrix"]

_MOST_PAIRS_TOLD = 8
#: No machine has more logical CPUs; a larger number shows a damaged list, but nothing depends on it.
_MOST_CPUS = 100_000


def find_matrices(lines: Sequence[str]) -> Iterator[tuple[range, TopologyMatrix] | TopologyError]:
    """Yield the matrices in plain lines with the indices of their lines, and why others are refused."""
    found = list(read_blocks(lines))
    starts = [block.header.line - 1 for block in found if isinstance(block, Block)][1:]
    for block in found:
        if isinstance(block, TopologyError):
            yield block
            continue
        end = next((start for start in starts if start >= block.end), len(lines))
        try:
            matrix = _matrix(block, read_legend(lines[block.end : end]))
        except TopologyError as error:
            yield error
        else:
            yield range(block.header.line - 1, block.end), matrix


def parse_matrices(text: str) -> tuple[TopologyMatrix, ...]:
    """Return all matrices of a text in order, at least one. Raises TopologyError if one of them is refused."""
    refuse_binary(text)
    matrices = []
    for found in find_matrices(plain_lines(text)):
        if isinstance(found, TopologyError):
            raise found
        matrices.append(found[1])
    if not matrices:
        raise TopologyError(why_none(text))
    return tuple(matrices)


def parse_matrix(text: str) -> TopologyMatrix:
    """Return the first matrix of a text, with all its links. Raises TopologyError even if a later one is refused."""
    matrix = parse_matrices(text)[0]
    if matrix.unknown_links():
        raise TopologyError("; ".join(matrix.warnings))
    return matrix


def refuse_binary(text: str) -> None:
    """Raise TopologyError for a text that was saved in another encoding."""
    if "\0" in text:
        raise TopologyError("the text has NUL bytes; save it as UTF-8 instead of UTF-16")


def _ports_down(lines: Iterable[str]) -> list[str]:
    """Return the network devices with a port that is not active, each with its state: "mlx5_1 is Down"."""
    device, found = "", dict[str, str]()
    for line in lines:
        device = named["device"] if (named := _PORT.match(line[:500])) else device
        state = _STATE.search(line[:500])
        if device and state and (state[1] or state[2]).upper() not in _UP:
            found.setdefault(device, state[1] or state[2])
    return [f"{device} is {state}" for device, state in found.items()]


def why_none(text: str) -> str:
    """Return the reason why a text has no matrix."""
    if not text.strip("\ufeff \t\r\n"):
        return "the input is empty"
    for words, meaning in INSTEAD_OF_A_MATRIX.items():
        if words in text:
            down = first_names(_ports_down(text.splitlines()), 8) or "no port is down"
            return meaning.format(f" ({down})")
    if _NAMES_IN_A_ROW.search(text):
        return "the text has a row of GPU names, but not in the format of nvidia-smi topo -m"
    if any(legend in text for legend in _LEGENDS):
        return "the text has only the legend; the matrix above it is missing"
    return "no matrix of nvidia-smi topo -m was found in the text"


def _matrix(block: Block, legend: Sequence[tuple[str, str]]) -> TopologyMatrix:
    columns = block.header.columns
    gpus = tuple(name for name in columns if GPU.fullmatch(name))
    nics, warnings = nic_names([name for name in columns if name not in gpus], legend)
    cells, unclear = _affinities(block, gpus)
    fill_gaps(block, [row.label for row in unclear])
    if block.header.titles and not unclear and not any(cells.values()):
        warnings.append("the affinity columns are blank in every row")
    if unclear:
        row, others = unclear[0], f" (and of {len(unclear) - 1} more)" if len(unclear) > 1 else ""
        left_out = f"the affinity cells of {row.label}{others} {row.reason}; they are ignored"
        warnings.append(f"line {row.line}: {left_out}")
    warnings += [*block.warnings, *asymmetries(columns, block.links), *_odd_cpus(cells)]
    matrix = TopologyMatrix(
        gpus=gpus,
        nics=nics,
        links={name: block.links[name] for name in columns},
        cpu_affinity={gpu: cells[gpu].get(CPU) for gpu in gpus},
        numa_affinity={gpu: cells[gpu].get(NUMA) for gpu in gpus},
        gpu_numa_id={gpu: cells[gpu].get(GPU_NUMA) for gpu in gpus},
        warnings=tuple(warnings),
    )
    if unknown := matrix.unknown_links():
        of = f"{unknown} of {len(columns) * (len(columns) - 1) // 2} links cannot be read from this matrix"
        matrix = matrix.model_copy(update={"warnings": (of, *warnings)})
    return matrix


def _affinities(block: Block, gpus: Sequence[str]) -> tuple[dict[str, dict[str, str]], list[Unclear]]:
    """Return the affinity cells of each GPU without cut rows, and the rows that are unclear."""
    titles = block.header.titles
    tails = [block.tails[gpu] for gpu in gpus if gpu in block.tails and gpu not in block.cut]
    affinity: dict[str, dict[str, str]] = {}
    unclear: list[Unclear] = []
    if titles:
        affinity, unclear = read_tails(tails, titles)
    elif titles is None:
        reason = "have no title that is understood"
        unclear = [Unclear(tail.label, tail.line, reason) for tail in tails if tail.cells]
    return {gpu: affinity.get(gpu, {}) for gpu in gpus}, unclear


def asymmetries(columns: Sequence[str], links: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Describe the pairs whose two rows disagree, as nvidia-smi prints them if one GPU has MIG enabled."""
    odd = [
        f"{row}-{column} reads {links[row][column]} in the row of {row} and {links[column][row]} in the row of {column}"
        for index, row in enumerate(columns)
        for column in columns[index + 1 :]
        if links[row].get(column) != links[column].get(row)
    ]
    more = len(odd) - _MOST_PAIRS_TOLD
    return odd[:_MOST_PAIRS_TOLD] + ([f"{more} more pairs disagree in the same way"] if more > 0 else [])


def _odd_cpus(cells: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield implausible CPU lists: lists of two sockets never overlap, and those of one socket are equal."""
    lists: dict[str, str] = {}
    for gpu, row in cells.items():
        if row.get(CPU, "N/A") != "N/A":
            lists.setdefault(row[CPU], gpu)
    spans = sorted((low, high, gpu) for cpus, gpu in lists.items() for low, high in cpu_ranges(cpus) or ())
    for gpu, cpu in {gpu: high for _, high, gpu in sorted(spans, key=lambda span: span[1])}.items():
        if cpu > _MOST_CPUS:
            yield f"the CPU list of {gpu} names CPU {cpu}, which no machine has"
    so_far, owner = -1, ""
    for low, high, gpu in spans:
        if low <= so_far and gpu != owner:
            yield f"the CPU lists of {owner} and {gpu} overlap but differ: one of them may be cut"
            return
        if high > so_far:
            so_far, owner = high, gpu


def fill_gaps(block: Block, unclear: Collection[str]) -> None:
    """Complete rows from the others; a link in a row of ``unclear`` affinity may run into the affinity.

    Raises TopologyError if a link may differ from the one that is read.
    """
    columns = block.header.columns
    for label in unclear:
        if label not in block.rests and label != columns[-1]:
            block.rests[label] = block.links[label].pop(columns[-1])
    printed = {label: dict(row) for label, row in block.links.items()}
    for label, rest in block.rests.items():
        _compare_with_the_others(block, label, rest, printed)
    block.warnings += [
        f"line {line}: the row of {label} is cut off; its other links were read from the other rows"
        for label, line in block.cut.items()
    ]
    missing = [name for name in columns if name not in block.links]
    if missing:
        more = f" and of {len(missing) - 1} more" if len(missing) > 1 else ""
        block.warnings.append(f"the row of {missing[0]}{more} is missing; its links were read from the other rows")
    read = {label: dict(row) for label, row in block.links.items()}
    for label in columns:
        both = {name: read.get(label, {}).get(name) or read.get(name, {}).get(label) for name in columns}
        block.links[label] = {name: code for name, code in both.items() if code}


def _compare_with_the_others(block: Block, label: str, rest: str, printed: Mapping[str, Mapping[str, str]]) -> None:
    """Reduce a cut row to cells that another row confirms, because a lost cell would have shifted the others.

    Raises TopologyError if the rows contradict each other.
    """
    row = block.links[label]
    doubtful = next((name for name in block.header.columns if name != label and name not in row), "")
    pairs = list(row.items()) if label in block.cut else []
    for name, code in pairs:
        other = printed.get(name, {}).get(label)
        if other is None:
            del row[name]
        elif other != code:
            raise _misread(block, label, name, code, other)
    other = printed.get(doubtful, {}).get(label)
    if other is not None and not (other.startswith(rest) or rest.startswith(other)):
        raise _misread(block, label, doubtful, rest, other)


def _misread(block: Block, label: str, name: str, code: str, other: str) -> TopologyError:
    return TopologyError(
        f"the end of row {label} is cut or garbled, and {label}-{name} is {code[:40]} there, {other} in row {name}",
        block.cut.get(label) or block.tails[label].line,
    )
