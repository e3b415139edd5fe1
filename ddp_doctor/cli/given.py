"""Texts and codes that the user names on the command line: read, and refused where they are another command's."""

import codecs
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.knowledge.ddp.strategies import BY_NAME
from ddp_doctor.knowledge.deadlines import LONGEST_SOAK_S, MOST_REPEATS
from ddp_doctor.knowledge.retired import RETIRED
from ddp_doctor.model.baseline import Baseline
from ddp_doctor.model.check import COLLECTIVES
from ddp_doctor.model.choices import FailOn, Level, UsageError, as_usage_error
from ddp_doctor.model.recording import Axis, FitOptions, Floor, Leaf
from ddp_doctor.model.rule import Described
from ddp_doctor.parse import options
from ddp_doctor.parse.file_kinds import READ_BY, file_kind
from ddp_doctor.parse.hostlist import expand, read_host_file
from ddp_doctor.parse.slurm_topology import read_topology
from ddp_doctor.sources.given import MOST_BYTES, CannotRead, read_given

#: Of 65,536 hosts, each written out, it is one.
_LARGEST_TOPOLOGY_BYTES = 4 * 1024 * 1024


def given_text(path: str, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file that the user names, ``-`` for stdin, also of one in UTF-16. Raises UsageError."""
    with as_usage_error(CannotRead):
        content = read_given(path, most_bytes=most_bytes)
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_wide else "utf-8", errors="replace")


def require_kind(path: str, text: str, wanted: str, *fine: str) -> None:
    """Refuse a text of a known kind that is none of ``fine``: it would pass for empty or healthy. Raises UsageError."""
    kind = file_kind(text)
    if kind is not None and kind not in fine:
        reads = f"; `ddp-doctor {READ_BY[kind]} {path}` reads it" if kind in READ_BY else ""
        raise UsageError(f"{path} is {kind}, and {wanted} is wanted{reads}")


def given_hosts(hosts: str | None, hostfile: str | None) -> tuple[str, ...]:
    """The hosts of --hosts or --hostfile; none where neither was given. Raises UsageError."""
    if hosts is not None and hostfile is not None:
        raise UsageError("--hosts and --hostfile are two ways to say the same: give one")
    with as_usage_error():
        found = read_host_file(given_text(hostfile)) if hostfile is not None else () if hosts is None else expand(hosts)
    if hostfile is not None and not found:
        raise UsageError(f"{hostfile} names no host; write one on each line")
    return found


def of_verdict(ignore: Sequence[str] | None, fail_on: FailOn, require_gpus: int | None) -> dict[str, Any]:
    """The fields of Options for --ignore, --fail-on and --require-gpus. Raises UsageError."""
    return {"ignore": ignored(ignore), "fail_on": fail_on, "require_gpus": require_gpus}


def healthy_runs(path: str | None) -> tuple[str, Baseline] | None:
    """The file of --baseline, and what is in it. Raises UsageError."""
    from ddp_doctor.app.baselines import load_baseline  # few runs need it

    return (path, load_baseline(path)) if path is not None else None


def of_model(model: str, from_trace: str, *, compiled: bool) -> dict[str, Any]:
    """The fields of Options for --model, --from-trace and --compile. Raises UsageError."""
    from ddp_doctor.app.advice import load_advice  # few runs need it

    if compiled and not model:
        raise UsageError("--compile looks at a model of yours: give --model MODULE:FACTORY, too")
    advice = load_advice(from_trace, model) if from_trace else ()
    return {"model": model, "from_trace": from_trace, "advice": advice, "compile": compiled}


def of_replay(path: str | None, *, is_written: bool) -> dict[str, Any]:
    """The field of Options for --replay; ``is_written``: with --reproducer. Raises UsageError."""
    if path is None and is_written:
        raise UsageError("--reproducer writes the collectives of a job: name its dumps with --replay")
    if path is None:
        return {}
    from ddp_doctor.app.job_collectives import load_job_collectives  # few runs need it

    return {"replay": load_job_collectives(path)}


def of_fit(model: str, memory: str, batch: int | None, seq: int | None, **fields: Any) -> dict[str, Any]:
    """The fields of Options for what ``fit`` is asked. Raises UsageError."""
    with as_usage_error():
        size = options.memory(memory) if memory else None
        if not options.is_configuration(model):
            options.require_factory(model, option="fit")
            if given := [name for name, value in (("--batch", batch), ("--seq", seq)) if value is not None]:
                raise ValueError(f"{given[0]} is for hf: models; the batch of a factory is what its make_batch returns")
        if fields["measure"] and fields["ranks"]:
            raise ValueError("--measure runs on the ranks that are here: leave --ranks out, or name --nproc-per-node")
        options.require_strategy(fields["strategy"], tuple(BY_NAME))
    return {"model": model, "fit": FitOptions(memory_bytes=size, batch=batch, seq=seq, **fields)}


def sweep(
    collectives: Sequence[str] | None,
    sizes: str,
    iters: int | None,
    warmup: int | None,
    floors: Sequence[str] | None,
    *,
    level: Level,
    only: Sequence[str],
) -> dict[str, Any]:
    """The fields of Options for --level, --only, --collective, --sizes, --iters, --warmup and --min-busbw.

    Raises UsageError.
    """
    words = [name.strip() for text in collectives or () for name in text.split(",")]
    names = tuple(dict.fromkeys(word for word in words if word))
    if collectives and not names:
        raise UsageError(f"--collective names none; there are {', '.join(TABLE)}")
    with as_usage_error():
        for name in names:
            options.require_collective(name, tuple(TABLE), "--collective")
        timed = tuple(name for name, row in TABLE.items() if row.is_timed)
        least = [options.floor(text, timed) for text in floors or ()]
        span = options.sizes(sizes)
    all_of_them = level is Level.THOROUGH or COLLECTIVES in only
    if not (names or least or all_of_them) and (span or iters is not None or warmup is not None):
        raise UsageError("--sizes, --iters and --warmup say how collectives are measured: name some with --collective")
    by_size = dict[tuple[str, int], float]()
    for name, size, rate in least:
        if by_size.setdefault((name, size), rate) != rate:
            raise UsageError(
                f"--min-busbw names two rates for {name} of {size} bytes, which exclude each other: give one"
            )
    return {
        "level": level,
        "only": tuple(only),
        "collectives": names,
        "sizes": span,
        "iters": iters,
        "warmup": warmup,
        "min_busbw": tuple(Floor(collective=name, size_bytes=size, bytes_per_s=rate) for name, size, rate in least),
    }


def of_groups(topology: str | None, soak: float | None, *, isolate: bool, repeat: int, data: str) -> dict[str, Any]:
    """The fields of Options for --isolate, --topology, --repeat, --soak and --data. Raises UsageError."""
    if repeat > MOST_REPEATS:
        raise UsageError(f"--repeat takes 1 to {MOST_REPEATS}, not {repeat}")
    if soak is not None and not 0.0 < 60.0 * soak <= LONGEST_SOAK_S:
        raise UsageError(f"--soak takes more than 0 and up to {LONGEST_SOAK_S / 60:g} minutes, a day, not {soak:g}")
    if topology is not None and not isolate:
        raise UsageError("--topology says which nodes share a switch, for --isolate: give that, too")
    return {
        "isolate": isolate,
        "topology": topology or "",
        "leaves": (_leaves(topology) if topology is not None else _leaves_of_slurm()) if isolate else (),
        "repeat": repeat,
        "soak_s": None if soak is None else 60.0 * soak,
        "data": data,
    }


def _leaves(path: str) -> tuple[Leaf, ...]:
    """What the file of --topology says. Raises UsageError."""
    if path == "-":
        raise UsageError("--topology names a file, which the agent of every node reads: stdin is of one alone")
    text = given_text(path, _LARGEST_TOPOLOGY_BYTES)
    require_kind(path, text, "a topology of SLURM, or lines of NAME: HOSTS,")
    try:
        return read_topology(text)
    except ValueError as error:
        raise UsageError(f"{path} is no topology that can be read: {error}") from error


def _leaves_of_slurm() -> tuple[Leaf, ...]:
    """What SLURM's own files say to a job of its own; nothing where they are not there, or say it otherwise."""
    if "SLURM_JOB_ID" not in os.environ:
        return ()
    folder = Path(os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf").parent
    for name in ("topology.yaml", "topology.conf"):  # SLURM reads the second where the first is not there
        with suppress(UsageError):
            text = given_text(f"{folder / name}", _LARGEST_TOPOLOGY_BYTES)
            with suppress(ValueError):
                return read_topology(text)
            return ()
    return ()


def axes(text: str | None) -> tuple[Axis, ...]:
    """The axes of --mesh. Raises UsageError."""
    with as_usage_error():
        found = options.mesh(text) if text is not None else ()
    return tuple(Axis(name=name, size=size) for name, size in found)


def rule_codes(given: Sequence[str] | None, rules: Sequence[Described]) -> tuple[str, ...]:
    """``--ignore DD305,DD4``: codes, or how they begin, of some of these rules. Raises UsageError."""
    codes = tuple(code.strip().upper() for text in given or () for code in text.split(",") if code.strip())
    for code in codes:
        if code not in RETIRED and not any(rule.code.startswith(code) for rule in rules):
            raise UsageError(f"there is no rule {code!r} here; `ddp-doctor checks` lists them")
    return codes


def ignored(given: Sequence[str] | None) -> tuple[str, ...]:
    """The codes that --ignore names. Raises UsageError also where they leave no rule: all would seem healthy."""
    if not given:
        return ()
    from ddp_doctor.engine.diagnose import all_rules  # takes longer than linting

    rules = all_rules()
    codes = rule_codes(given, rules)
    if codes and all(rule.code.startswith(codes) for rule in rules):
        raise UsageError(f"--ignore {','.join(codes)} leaves no rule")
    return codes
