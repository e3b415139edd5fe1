"""The culprits of a cause, as text and as Culprit objects."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from ddp_doctor.features.jobs.causes.evidence import Output, Suspect
from ddp_doctor.features.jobs.facts import ProcessSeen, SignSeen
from ddp_doctor.model.finding import Culprit, CulpritKind
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import rank_list

#: Maximum number of ranks that are named one by one; more are a list of numbers, with their hosts after it.
_EACH = 2
#: Causes for which the rank that printed the sign only noticed it: another rank may differ.
_BETWEEN_RANKS = ("collective-mismatch", "nccl-settings-differ", "world-sizes-differ")
#: The texts for an unknown host and an unknown rank.
UNKNOWN = ("a node", "a rank")
#: The kinds of culprits in values of signs, in addition to GPUs and ranks.
_KINDS: dict[str, CulpritKind] = {"device": "nic", "variable": "setting", "file": "file"}


def place(output: Output, rank: int) -> str:
    """Return a rank with its place, such as ``rank 5 (node2, GPU1)``."""
    known = output.rank(rank)
    gpu = "" if known.gpu is None else f"GPU{known.gpu}"
    where = ", ".join(filter(None, (known.host if known.host != "localhost" else "", gpu)))
    return f"rank {rank} ({where})" if where else f"rank {rank}"


def places(output: Output, ranks: Iterable[int]) -> str:
    """Return ranks for a sentence: a few with their places, more as ``ranks 0-4, 6, 7 (node0 and node1)``."""
    numbers = sorted(set(ranks))
    if len(numbers) > 1 and len(numbers) == output.fact.world_size:
        return "both ranks" if len(numbers) == 2 else f"all {len(numbers)} ranks"
    if len(numbers) <= _EACH:
        return name_list([place(output, rank) for rank in numbers])
    hosts = {output.rank(rank).host for rank in numbers} - {None, "localhost"}
    on = f" ({name_list(sorted(filter(None, hosts)))})" if hosts else ""
    return f"{rank_list(numbers)}{on}"


def failed_first(output: Output) -> list[str]:
    """Return ``rank 4 failed first, 51 s before the others`` in a list; empty if launchers print no such times."""
    times = sorted(rank.ended_at for rank in output.died if rank.ended_at)
    try:
        first, second = (datetime.fromisoformat(time) for time in times[:2])
        before = f"{(second - first).total_seconds():.0f} s before the others"
    except (ValueError, TypeError):  # no times, or times with and without a zone
        return []
    return [] if output.first_failed is None else [f"rank {output.first_failed} failed first, {before}"]


def local_places(processes: Iterable[ProcessSeen | SignSeen]) -> str:
    """Return the processes without a known rank in the job, such as ``local rank 3 on node1``."""
    each = dict.fromkeys((process.local_rank, process.host) for process in processes if process.local_rank is not None)
    texts = [f"local rank {rank}{f' on {host}' if host and host != 'localhost' else ''}" for rank, host in each]
    return name_list(texts) if texts else ""


def local_culprits(processes: Iterable[ProcessSeen | SignSeen]) -> tuple[Culprit, ...]:
    """Return these processes as culprits, without a rank in the job."""
    each = dict.fromkeys((process.local_rank, process.host) for process in processes if process.local_rank is not None)
    return tuple(Culprit(kind="rank", node=host, name=f"local rank {rank}") for rank, host in each)


def _ranks(output: Output, suspect: Suspect) -> frozenset[int]:
    is_of_code = suspect.cause.domain in ("code", "data", "unknown") and suspect.tier == "exception"
    if is_of_code and not suspect.ranks and output.first_failed is not None:
        is_anybodys = all(sign.host is None and sign.local_rank is None for sign in suspect.signs)
        return frozenset({output.first_failed} if is_anybodys else ())
    if suspect.ranks or suspect.cause.name != "host-oom-kill":
        return suspect.ranks
    killed = [rank for rank in output.died if rank.signal == "SIGKILL" and rank.rank not in output.stuck]
    pid = suspect.values.get("pid")
    is_it = len(killed) == 1 and (pid is None or killed[0].pid in (None, int(pid)))
    return frozenset(rank.rank for rank in killed if is_it)


def who(output: Output, suspect: Suspect) -> str:
    """Return the ranks or hosts that printed the signs: ranks first for causes in code or GPUs, otherwise hosts."""
    ranks = places(output, _ranks(output, suspect))
    hosts = [suspect.values["host"]] if "host" in suspect.values else output.hosts_of(suspect.signs)
    named = name_list(sorted(hosts))
    if suspect.cause.domain in ("code", "data", "unknown", "gpu"):
        is_driver = output.fact.launcher == "ray" and not any(sign.pid for sign in suspect.signs)
        return ranks or local_places(suspect.signs) or named or ("the driver" if is_driver else UNKNOWN[1])
    return named or ranks or UNKNOWN[0]


def rank_culprit(output: Output, rank: int) -> Culprit:
    """Return a rank as a culprit, with its host and GPU if known."""
    known = output.rank(rank)
    return Culprit(kind="rank", rank=rank, node=known.host, gpu=known.gpu)


def culprits(output: Output, suspect: Suspect) -> tuple[Culprit, ...]:
    """Return the culprits that the signs name, otherwise the ranks or hosts that printed the signs.

    Empty if all ranks report the same fault of their code.
    """
    named = (_named(output, sign.values, sign.host, sign.rank) for sign in suspect.signs)
    found = _ends(output, suspect) or tuple(dict.fromkeys(culprit for culprit in named if culprit is not None))
    if suspect.cause.name == _BETWEEN_RANKS[0]:
        found = ()  # the message names two ranks; the first of them only printed it
    if found or suspect.cause.name in _BETWEEN_RANKS:
        return found
    hosts = output.hosts_of(suspect.signs)
    if suspect.cause.domain in ("code", "data", "unknown"):
        if len(suspect.ranks) > 1 and suspect.ranks == output.world:
            return ()
        ranks = tuple(rank_culprit(output, rank) for rank in sorted(_ranks(output, suspect)))
        local = local_culprits(suspect.signs)
        return ranks or (() if 1 < len(local) == len(output.fact.local_ranks) else local)
    if hosts:
        return tuple(Culprit(kind="node", node=host) for host in sorted(hosts))
    return tuple(rank_culprit(output, rank) for rank in sorted(_ranks(output, suspect)))


def _ends(output: Output, suspect: Suspect) -> tuple[Culprit, ...]:
    """Return the end that several broken connections have in common, otherwise each connection as a pair.

    Error 12 on many nodes towards one address is a fault of that address; on one node towards many, of this node.
    """
    pairs = {(_printed_by(output, sign), sign.values["peer"]) for sign in suspect.signs if "peer" in sign.values}
    near, far = {near for near, _ in pairs} - {None}, {peer for _, peer in pairs}
    if len(near) > 1 and len(far) == 1:
        return (Culprit(kind="node", node=far.pop()),)
    if len(near) == 1 and len(far) > 1:
        return (near.pop() or Culprit(kind="node"),)
    ends = [(end or Culprit(kind="node"), peer) for end, peer in pairs]
    ends.sort(key=lambda pair: (pair[0].node or "", pair[0].rank or 0, pair[1]))
    return tuple(end.model_copy(update={"kind": "pair", "peer_node": peer}) for end, peer in ends)


def _printed_by(output: Output, sign: SignSeen) -> Culprit | None:
    hosts = output.hosts_of([sign])
    if hosts:
        return Culprit(kind="node", node=hosts[0])
    return None if sign.rank is None else rank_culprit(output, sign.rank)


def _named(output: Output, values: Mapping[str, str], host: str | None, speaker: int | None) -> Culprit | None:
    node = values.get("host") or host
    if values.get("rank", "").isdigit() and values.get("peer_rank", "").isdigit():
        both = rank_culprit(output, int(values["rank"]))
        pair = {"kind": "pair", "peer_rank": int(values["peer_rank"]), "name": values.get("bus")}
        return both.model_copy(update=pair)
    if "gpu" in values or "bus" in values:
        gpu = int(values["gpu"]) if values.get("gpu", "").isdigit() else None
        rank = output.first_failed if speaker is None and node is None else speaker
        node = node if rank is None else node or output.rank(rank).host
        return Culprit(kind="gpu", node=node, rank=rank, gpu=gpu, name=values.get("bus"))
    for name, kind in _KINDS.items():
        if name in values:
            return Culprit(kind=kind, node=None if kind == "file" else node, name=values[name])
    if not values.get("rank", "").isdigit():
        return None
    return rank_culprit(output, int(values["rank"]))
