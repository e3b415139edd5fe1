"""How findings on traces speak of ranks and of times."""

from ddp_doctor.facts.trace import TraceFact


def ms(microseconds: float) -> str:
    """``143 ms``, ``43 ms``, ``4.3 ms``, ``0.43 ms``."""
    value = microseconds / 1e3
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def rank_of(fact: TraceFact) -> str:
    """``rank 1 (node0, rank1.json.gz)``, without the folder; the host where that is told."""
    return f"rank {fact.rank} ({', '.join(filter(None, (fact.host, fact.file.rpartition('/')[2])))})"
