r"""Reads the output of ``nvidia-smi topo -m``, of every driver generation, or refuses it with a reason.

            GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
    GPU0     X      SYS     PIX     0-31,64-95      0               N/A
    GPU1    SYS      X      SYS     32-63,96-127    1               N/A
    NIC0    PIX     SYS      X

    Legend: …

    NIC Legend:

      NIC0: mlx5_0

Met in the wild and read: SOC for SYS and no NUMA columns (2015-17), device names in the header
instead of a NIC legend (up to driver 520), tabs or the spaces they became, underlined headers, CRLF,
log prefixes, quoted and numbered lines, Markdown tables, prompts before and other output after,
several hosts in one text, and a separator lost in copying. Rows go by their label and cells by their
count, never by their position; the diagonal must be X. Whatever else stands there is refused, never
guessed.
"""

from collections.abc import Iterator, Mapping, Sequence

from ddp_doctor.checks.node.topology.formats.nvidia_smi_words import explain
from ddp_doctor.checks.node.topology.formats.topo_affinity import (
    CPU,
    GPU_NUMA,
    NUMA,
    UnclearError,
    cpu_ranges,
    read_tails,
)
from ddp_doctor.checks.node.topology.formats.topo_legend import nic_names, read_legend
from ddp_doctor.checks.node.topology.formats.topo_rows import GPU, Block, TopologyError, read_blocks
from ddp_doctor.facts.node.topology import TopologyMatrix
from ddp_doctor.parse.text import plain_lines

__all__ = ["TopologyError", "find_matrices", "parse_matrices", "parse_matrix"]

_MOST_PAIRS_TOLD = 8
#: No machine has more logical CPUs; above it the list is damaged, though nothing depends on it.
_MOST_CPUS = 100_000


def find_matrices(lines: Sequence[str]) -> Iterator[tuple[range, TopologyMatrix]]:
    """The matrices in plain lines, each with the indices of the lines it takes. Raises TopologyError."""
    blocks = list(read_blocks(lines))
    ends = [block.header.line - 1 for block in blocks[1:]] + [len(lines)]
    for block, end in zip(blocks, ends[: len(blocks)], strict=True):
        yield range(block.header.line - 1, block.end), _matrix(block, read_legend(lines[block.end : end]))


def parse_matrices(text: str) -> tuple[TopologyMatrix, ...]:
    """All matrices of a text, in order, at least one. Raises TopologyError."""
    refuse_binary(text)
    matrices = tuple(matrix for _, matrix in find_matrices(plain_lines(text)))
    if not matrices:
        raise TopologyError(why_none(text))
    return matrices


def parse_matrix(text: str) -> TopologyMatrix:
    """The first matrix of a text. Raises TopologyError, also where a later one is not understood."""
    return parse_matrices(text)[0]


def refuse_binary(text: str) -> None:
    """Raises TopologyError for a text that was saved in another encoding."""
    if "\0" in text:
        raise TopologyError("the text holds NUL bytes: save it as UTF-8, not as UTF-16")


def why_none(text: str) -> str:
    """Why there is nothing to read in a text."""
    if not text.strip("\ufeff \t\r\n"):
        return "the input is empty"
    return explain(text) or "no matrix of nvidia-smi topo -m was found in the text"


def _matrix(block: Block, legend: Sequence[tuple[str, str]]) -> TopologyMatrix:
    columns = block.header.columns
    gpus = tuple(name for name in columns if GPU.fullmatch(name))
    nics, warnings = nic_names([name for name in columns if name not in gpus], legend)
    cells = _affinities(block, gpus)
    if block.header.titles and not any(cells.values()):
        warnings.append("the affinity columns are blank in every row")
    warnings += [*block.warnings, *asymmetries(columns, block.links), *_odd_cpus(cells)]
    return TopologyMatrix(
        gpus=gpus,
        nics=nics,
        links={name: block.links[name] for name in columns},
        cpu_affinity={gpu: cells[gpu].get(CPU) for gpu in gpus},
        numa_affinity={gpu: cells[gpu].get(NUMA) for gpu in gpus},
        gpu_numa_id={gpu: cells[gpu].get(GPU_NUMA) for gpu in gpus},
        warnings=tuple(warnings),
    )


def _affinities(block: Block, gpus: Sequence[str]) -> dict[str, dict[str, str]]:
    if not block.header.titles:
        return {gpu: {} for gpu in gpus}
    try:
        told = read_tails([block.tails[gpu] for gpu in gpus if gpu in block.tails], block.header.titles)
    except UnclearError as unclear:
        raise TopologyError(str(unclear), unclear.line) from None
    return {gpu: told.get(gpu, {}) for gpu in gpus}


def asymmetries(columns: Sequence[str], links: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Pairs whose two rows disagree, as nvidia-smi prints them where one GPU has MIG enabled."""
    odd = [
        f"{one}-{two} reads {links[one][two]} in the row of {one} and {links[two][one]} in the row of {two}"
        for index, one in enumerate(columns)
        for two in columns[index + 1 :]
        if links[one][two] != links[two][one]
    ]
    more = len(odd) - _MOST_PAIRS_TOLD
    return odd[:_MOST_PAIRS_TOLD] + ([f"{more} more pairs disagree in the same way"] if more > 0 else [])


def _odd_cpus(cells: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """CPU lists that cannot be whole: of two sockets lists do not overlap, and of one they are alike."""
    lists: dict[str, str] = {}
    for gpu, row in cells.items():
        if row.get(CPU, "N/A") != "N/A":
            lists.setdefault(row[CPU], gpu)
    spans = sorted((low, high, gpu) for cpus, gpu in lists.items() for low, high in cpu_ranges(cpus))
    for gpu, cpu in {gpu: high for _, high, gpu in sorted(spans, key=lambda span: span[1])}.items():
        if cpu > _MOST_CPUS:
            yield f"the CPU list of {gpu} names CPU {cpu}, which no machine has"
    so_far, owner = -1, ""
    for low, high, gpu in spans:
        if low <= so_far and gpu != owner:
            yield f"the CPU lists of {owner} and {gpu} overlap and are not alike: one of them may be cut"
            return
        if high > so_far:
            so_far, owner = high, gpu
