"""Culprits of a cause that signs speak for, as text and as Culprit."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from ddp_doctor.features.jobs.causes.evidence import Output, Suspect
from ddp_doctor.features.jobs.facts import ProcessSeen, SignSeen
from ddp_doctor.model.finding import Culprit, CulpritKind
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import rank_list

#: More ranks than this are named as a list of numbers, with their hosts behind it.
_EACH = 2
#: A rank that prints these only noticed it: another one may differ.
_BETWEEN_RANKS = ("collective-mismatch", "nccl-settings-differ", "world-sizes-differ")
#: The names of a host and a rank that the output does not name.
UNKNOWN = ("a node", "a rank")
#: What values of signs are, beside GPUs and ranks.
_KINDS: dict[str, CulpritKind] = {"device": "nic", "variable": "setting", "file": "file"}


def place(output: Output, rank: int) -> str:
    """``rank 5 (node2, GPU1)``."""
    known = output.rank(rank)
    gpu = "" if known.gpu is None else f"GPU{known.gpu}"
    where = ", ".join(filter(None, (known.host if known.host != "localhost" else "", gpu)))
    return f"rank {rank} ({where})" if where else f"rank {rank}"


def places(output: Output, ranks: Iterable[int]) -> str:
    """Ranks for a sentence: each with its place where they are few, else ``ranks 0-4, 6, 7 (node0 and node1)``."""
    numbers = sorted(set(ranks))
    if len(numbers) > 1 and len(numbers) == output.fact.world_size:
        return "both ranks" if len(numbers) == 2 else f"all {len(numbers)} ranks"
    if len(numbers) <= _EACH:
        return name_list([place(output, rank) for rank in numbers])
    hosts = {output.rank(rank).host for rank in numbers} - {None, "localhost"}
    on = f" ({name_list(sorted(filter(None, hosts)))})" if hosts else ""
    return f"{rank_list(numbers)}{on}"


def failed_first(output: Output) -> list[str]:
    """``rank 4 failed first, 51 s before the others``, if the launchers' summaries tell the times of several."""
    times = sorted(rank.ended_at for rank in output.died if rank.ended_at)
    try:
        first, second = (datetime.fromisoformat(time) for time in times[:2])
        before = f"{(second - first).total_seconds():.0f} s before the others"
    except (ValueError, TypeError):  # no times, or times with and without a zone
        return []
    return [] if output.first_failed is None else [f"rank {output.first_failed} failed first, {before}"]


def local_places(processes: Iterable[ProcessSeen | SignSeen]) -> str:
    """``local rank 3 on node1``: the processes whose rank in the job is not known."""
    each = dict.fromkeys((process.local_rank, process.host) for process in processes if process.local_rank is not None)
    texts = [f"local rank {rank}{f' on {host}' if host and host != 'localhost' else ''}" for rank, host in each]
    return name_list(texts) if texts else ""


def local_culprits(processes: Iterable[ProcessSeen | SignSeen]) -> tuple[Culprit, ...]:
    """These processes as culprits, without a rank in the job."""
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
    """The ranks or hosts that said it; of code the ranks come first, else the hosts."""
    ranks = places(output, _ranks(output, suspect))
    hosts = [suspect.values["host"]] if "host" in suspect.values else output.hosts_of(suspect.signs)
    named = name_list(sorted(hosts))
    if suspect.cause.domain in ("code", "data", "unknown", "gpu"):
        is_driver = output.fact.launcher == "ray" and not any(sign.pid for sign in suspect.signs)
        return ranks or local_places(suspect.signs) or named or ("the driver" if is_driver else UNKNOWN[1])
    return named or ranks or UNKNOWN[0]


def rank_culprit(output: Output, rank: int) -> Culprit:
    """One rank, with its host and GPU where they are known."""
    known = output.rank(rank)
    return Culprit(kind="rank", rank=rank, node=known.host, gpu=known.gpu)


def culprits(output: Output, suspect: Suspect) -> tuple[Culprit, ...]:
    """Whom the signs themselves name, else who printed them; nobody where every rank says the same of its code."""
    named = (_named(output, sign.values, sign.host, sign.rank) for sign in suspect.signs)
    found = _ends(output, suspect) or tuple(dict.fromkeys(culprit for culprit in named if culprit is not None))
    if suspect.cause.name == _BETWEEN_RANKS[0]:
        found = ()  # of the two ranks that the message names, the first printed it
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
    """Of broken connections: the end that is in all of them, where there are several; else each as a pair.

    Error 12 on many nodes towards one address is that address's; one node's towards many is its own.
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
