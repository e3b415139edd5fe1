"""What rows of ``nvidia-smi topo -m`` that are cut or missing would say, from the other rows.

Every link is printed twice, once in the row of each of its ends::

            GPU0    GPU1    GPU2    CPU Affinity
    GPU0     X      PIX     PHB     0-7
    GPU1    PIX      X      PH
    GPU2    PHB     PHB      X      0-7

What no row gives is left out; a link is refused where what stands there may be read as another.
"""

from collections.abc import Collection, Iterator, Mapping

from ddp_doctor.checks.node.topology.formats.topo_rows import Block, TopologyError


def fill_gaps(block: Block, unclear: Collection[str]) -> None:
    """Completes rows from the others; ``unclear`` are those whose affinity is, so that a link may run into it.

    Raises TopologyError where a link may be another than the one that is read.
    """
    columns = block.header.columns
    for label in unclear:
        if label not in block.rests and label != columns[-1]:
            block.rests[label] = block.links[label].pop(columns[-1])
    printed = {label: dict(row) for label, row in block.links.items()}
    for label, rest in block.rests.items():
        _compare_with_the_others(block, label, rest, printed)
    block.warnings += _completed(block)
    read = {label: dict(row) for label, row in block.links.items()}
    for label in columns:
        both = {name: read.get(label, {}).get(name) or read.get(name, {}).get(label) for name in columns}
        block.links[label] = {name: code for name, code in both.items() if code}


def _compare_with_the_others(
    block: Block, label: str, rest: str, printed: Mapping[str, Mapping[str, str]]
) -> None:
    """A row that is cut keeps what another row says too: a cell that is lost would have moved the others."""
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
    line = block.cut.get(label) or block.tails[label].line
    return TopologyError(
        f"the end of row {label} is cut or garbled, and {label}-{name} is {code[:40]} there, {other} in row {name}",
        line,
    )


def _completed(block: Block) -> Iterator[str]:
    """What is missing, and where its links come from."""
    yield from (
        f"line {line}: the row of {label} is cut off; its other links are those that the other rows give"
        for label, line in block.cut.items()
    )
    missing = [name for name in block.header.columns if name not in block.links]
    if missing:
        more = f" and of {len(missing) - 1} more" if len(missing) > 1 else ""
        yield f"the row of {missing[0]}{more} is missing; its links are those that the other rows give"
