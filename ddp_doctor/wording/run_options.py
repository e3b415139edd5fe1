"""The options of ``ddp-doctor run`` for another node, without the node's own position and the outputs."""

import shlex

from ddp_doctor.model.recording import Options, mesh_typed

JOIN_TIMEOUT_S = 60.0


def typed(
    options: Options, nproc_per_node: int | None = None, join_timeout_s: float = JOIN_TIMEOUT_S
) -> tuple[str, ...]:
    """Return the options that differ from their defaults: ``("--join-timeout", "12", "--level", "quick")``."""
    usual = Options()
    named = (
        ("--nproc-per-node", f"{nproc_per_node}", "None"),
        ("--join-timeout", f"{join_timeout_s:g}", f"{JOIN_TIMEOUT_S:g}"),
        ("--backend", options.backend.value, usual.backend.value),
        ("--level", options.level.value, usual.level.value),
        ("--budget", f"{options.budget_s:g}", f"{usual.budget_s:g}"),
        ("--fail-on", options.fail_on.value, usual.fail_on.value),
        ("--model", options.model, usual.model),
        ("--from-trace", options.from_trace, usual.from_trace),
        ("--mesh", mesh_typed(options.mesh), ""),
        ("--collectives-of", options.replay.path if options.replay else "", ""),
        ("--topology", options.topology, ""),
        ("--repeat", f"{options.repeat}", f"{usual.repeat}"),
        ("--soak", f"{(options.soak_s or 0.0) / 60:g}", "0"),
        ("--data", options.data, ""),
        ("--require-gpus", f"{options.require_gpus}", "None"),
    )
    words = [word for name, value, default in named if value != default for word in (name, value)]
    words += ["--compile"] if options.compile else []
    words += ["--isolate"] if options.isolate else []
    words += [word for name in options.collectives for word in ("--collective", name)]
    words += ["--sizes", ":".join(map(str, options.sizes))] if options.sizes else []
    words += ["--iters", f"{options.iters}"] if options.iters is not None else []
    words += ["--warmup", f"{options.warmup}"] if options.warmup is not None else []
    words += [word for least in options.min_busbw for word in ("--min-busbw", least.typed)]
    words += [word for check in options.only for word in ("--only", check)]
    words += [word for check in options.skip for word in ("--skip", check)]
    words += [word for code in options.ignore for word in ("--ignore", code)]
    words += [] if options.prove else ["--no-prove"]
    return tuple(words)


def line(command: str, words: tuple[str, ...]) -> str:
    """Return a command with these options, to paste into a shell."""
    return " ".join((command, *map(shlex.quote, words)))
