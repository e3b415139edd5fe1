"""Input from the command line: options are converted to values, and files for other commands are refused."""

import codecs
import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ddp_doctor.cli.run_options import RunOptions
from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.knowledge.deadlines import LONGEST_SOAK_S, MOST_REPEATS
from ddp_doctor.knowledge.retired import RETIRED
from ddp_doctor.model.check import COLLECTIVES
from ddp_doctor.model.choices import Backend, Level, UsageError, as_usage_error
from ddp_doctor.model.error_text import expected, quoted, unknown
from ddp_doctor.model.recording import Axis, Floor, Leaf, Options, TraceAdvice
from ddp_doctor.model.rule import Described
from ddp_doctor.parse import options
from ddp_doctor.parse.file_kinds import READ_BY, file_kind
from ddp_doctor.parse.hostlist import expand, read_host_file
from ddp_doctor.parse.slurm_topology import read_topology
from ddp_doctor.sources.given import MOST_BYTES, CannotRead, read_given

_CODE = re.compile(r"DD[A-Z]?\d+")
#: The topology of 65,536 hosts, each written out, is below this.
_LARGEST_TOPOLOGY_BYTES = 4 * 1024 * 1024


def given_text(path: str, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file that the user names (``-`` for stdin), in UTF-8 or UTF-16. Raises UsageError."""
    with as_usage_error(CannotRead):
        return decoded_text(read_given(path, most_bytes=most_bytes))


def decoded_text(content: bytes) -> str:
    """Return the text of a file in UTF-8 or UTF-16."""
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_wide else "utf-8", errors="replace")


def require_kind(path: str, text: str, wanted: str, *fine: str) -> None:
    """Refuse a text of a known kind outside of ``fine``: it would seem empty or healthy. Raises UsageError."""
    kind = file_kind(text)
    if kind is not None and kind not in fine:
        reads = f"; run `ddp-doctor {READ_BY[kind]} {shlex.quote(path)}` to read it" if kind in READ_BY else ""
        raise UsageError(f"{quoted(path)} is {kind}, but {wanted} is expected{reads}")


def given_hosts(hosts: str | None, hostfile: str | None) -> tuple[str, ...]:
    """Return the hosts of --hosts or --hostfile; empty if neither was given. Raises UsageError."""
    if hosts is not None and hostfile is not None:
        raise UsageError("--hosts and --hostfile are mutually exclusive; give one of them")
    try:
        if hostfile is None:
            return () if hosts is None else expand(hosts)
        text = given_text(hostfile)
        require_kind(hostfile, text, "a host file")
        found = read_host_file(text)
    except ValueError as error:
        what = "invalid --hosts" if hostfile is None else f"{quoted(hostfile)} is not a host file"
        raise UsageError(f"{what}: {error}") from error
    if not found:
        raise UsageError(f"{quoted(hostfile)} does not list any host; write one host per line")
    return found


def of_run(typed: RunOptions, *, is_reproducer_written: bool) -> Options:
    """Return the options of ``run``, with the contents of the files that they name. Raises UsageError."""
    _require_sense(typed, is_reproducer_written=is_reproducer_written)
    collectives, floors, only = _collectives(typed.collective), _floors(typed.min_busbw), names(typed.only)
    if only and (collectives or floors):
        only = tuple(dict.fromkeys((*only, COLLECTIVES)))
    with as_usage_error():
        sizes = options.sizes(typed.sizes)
    all_of_them = typed.level is Level.THOROUGH or COLLECTIVES in only
    if not (collectives or floors or all_of_them) and (sizes or typed.iters is not None or typed.warmup is not None):
        raise UsageError("--sizes, --iters and --warmup require --collective")
    advice, replay = tuple[TraceAdvice, ...](), None
    if typed.from_trace:
        from ddp_doctor.app.advice import load_advice  # few runs need it

        advice = load_advice(typed.from_trace, typed.model)
    if typed.collectives_of is not None:
        from ddp_doctor.app.job_collectives import load_job_collectives  # nor this

        replay = load_job_collectives(typed.collectives_of)
    return Options(
        level=typed.level,
        backend=Backend.NCCL if typed.nproc_per_node == "gpu" else typed.backend,
        only=only,
        skip=names(typed.skip),
        budget_s=typed.budget,
        ignore=ignored(typed.ignore),
        fail_on=typed.fail_on,
        require_gpus=typed.require_gpus,
        prove=typed.prove,
        compile=typed.compiled,
        model=typed.model,
        from_trace=typed.from_trace,
        advice=advice,
        replay=replay,
        collectives=collectives,
        sizes=sizes,
        iters=typed.iters,
        warmup=typed.warmup,
        min_busbw=floors,
        mesh=axes(typed.mesh),
        isolate=typed.isolate,
        topology=typed.topology or "",
        leaves=_leaves(typed.topology) if typed.isolate else (),
        repeat=typed.repeat,
        soak_s=None if typed.soak is None else 60.0 * typed.soak,
        data=typed.data,
    )


def _require_sense(typed: RunOptions, *, is_reproducer_written: bool) -> None:
    """Refuse numbers out of range, and options that have no effect without another one. Raises UsageError."""
    if typed.compiled and not typed.model:
        raise UsageError("--compile requires a model; add --model MODULE:FACTORY")
    if is_reproducer_written and typed.collectives_of is None:
        raise UsageError("--reproducer requires the collectives of a job; add --collectives-of DUMP")
    if typed.nproc_per_node == "gpu" and typed.backend is Backend.GLOO:
        raise UsageError(
            "--nproc-per-node gpu cannot be used with --backend gloo, which does not use GPUs; give a number of ranks"
        )
    if not typed.join_timeout <= LONGEST_SOAK_S:
        raise UsageError(
            f"invalid --join-timeout {typed.join_timeout:g}: expected 1 to {LONGEST_SOAK_S:g} seconds (a day)"
        )
    if typed.repeat > MOST_REPEATS:
        raise UsageError(f"invalid --repeat {quoted(typed.repeat)}: expected 1 to {MOST_REPEATS}")
    if typed.soak is not None and not 0.0 < 60.0 * typed.soak <= LONGEST_SOAK_S:
        raise UsageError(
            f"invalid --soak {typed.soak:g}: expected more than 0 and at most {LONGEST_SOAK_S / 60:g} minutes (a day)"
        )
    if typed.topology is not None and not typed.isolate:
        raise UsageError("--topology requires --isolate")


def names(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return all names of ``--only p2p,allreduce --only buffers``."""
    return tuple(name.strip() for text in given or () for name in text.split(","))


def _collectives(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the collectives of --collective. Raises UsageError."""
    found = tuple(dict.fromkeys(filter(None, names(given))))
    if given and not found:
        raise UsageError(f"--collective is empty: {expected('', TABLE)}")
    with as_usage_error():
        for name in found:
            options.require_collective(name, tuple(TABLE), "--collective")
    return found


def _floors(given: Sequence[str] | None) -> tuple[Floor, ...]:
    """Return the floors of --min-busbw. Raises UsageError."""
    timed = tuple(name for name, row in TABLE.items() if row.is_timed)
    with as_usage_error():
        least = [options.floor(text, timed) for text in given or ()]
    by_size = dict[tuple[str, int], float]()
    for name, size, rate in least:
        if by_size.setdefault((name, size), rate) != rate:
            raise UsageError(f"--min-busbw has two rates for {name} with {size} bytes; remove one of them")
    return tuple(Floor(collective=name, size_bytes=size, bytes_per_s=rate) for name, size, rate in least)


def _leaves(path: str | None) -> tuple[Leaf, ...]:
    """Return the leaves from the file of --topology, or from SLURM. Raises UsageError."""
    if path is None:
        return _leaves_of_slurm()
    if path == "-":
        raise UsageError("cannot read --topology from stdin (-), because each node reads the file itself; give a path")
    text = given_text(path, _LARGEST_TOPOLOGY_BYTES)
    require_kind(path, text, "a file in SLURM topology format or with NAME: HOSTS lines")
    try:
        return read_topology(text)
    except ValueError as error:
        raise UsageError(f"{quoted(path)} is not a valid topology: {error}") from error


def _leaves_of_slurm() -> tuple[Leaf, ...]:
    """Return the leaves from SLURM's own files inside a SLURM job; empty if the files are missing or unreadable."""
    if "SLURM_JOB_ID" not in os.environ:
        return ()
    folder = Path(os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf").parent
    for name in ("topology.yaml", "topology.conf"):  # SLURM reads the second one if the first is missing
        with suppress(UsageError):
            text = given_text(f"{folder / name}", _LARGEST_TOPOLOGY_BYTES)
            with suppress(ValueError):
                return read_topology(text)
            return ()
    return ()


def axes(text: str | None) -> tuple[Axis, ...]:
    """Return the axes of --mesh. Raises UsageError."""
    with as_usage_error():
        found = options.mesh(text) if text is not None else ()
    return tuple(Axis(name=name, size=size) for name, size in found)


def rule_codes(given: Sequence[str] | None, rules: Sequence[Described]) -> tuple[str, ...]:
    """Return the codes or code prefixes of ``--ignore DD305,DD4``, if one of these rules matches. Raises UsageError."""
    codes = tuple(code.strip().upper() for text in given or () for code in text.split(",") if code.strip())
    for code in codes:
        if code not in RETIRED and not any(rule.code.startswith(code) for rule in rules):
            misspelt = [] if _CODE.fullmatch(code) else [rule.code for rule in rules]  # other digits are another rule
            raise UsageError(unknown("rule", code, misspelt, "run `ddp-doctor explain` to list all rules"))
    return codes


def ignored(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the codes of --ignore. Raises UsageError, even for valid codes if they exclude every rule."""
    if not given:
        return ()
    from ddp_doctor.engine.diagnose import all_rules  # takes longer than linting

    rules = all_rules()
    codes = rule_codes(given, rules)
    if codes and all(rule.code.startswith(codes) for rule in rules):
        raise UsageError(f"--ignore {','.join(codes)} excludes every rule; ignore fewer rules")
    return codes
