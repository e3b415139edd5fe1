"""The share of the preflight's rates that a job reaches: text for a finding, and for a healthy verdict."""

from collections.abc import Sequence

from ddp_doctor.facts.cluster import BaselineFact, HeldAgainst, Preflight
from ddp_doctor.knowledge.baselines import COMPARABLE, loss
from ddp_doctor.wording.nodes import name_list


def share(each: HeldAgainst) -> float:
    """Return the share of the preflight's rate that the job reached."""
    return 1 - loss(each.name, each.value, each.median)


def reached(fact: BaselineFact, preflight: Preflight) -> str:
    """Return ``the job reaches 58 to 97% of what these nodes delivered on DATE, in all-reduces of 8 MiB``."""
    whose = {True: "these nodes", False: "other nodes", None: "the nodes of the run"}[preflight.same_nodes]
    at = preflight.finished_at[:16].replace("T", " at ")
    when = f" on {at}{' UTC' if preflight.finished_at.endswith('Z') else ''}" if at else ""
    names = name_list([f"{COMPARABLE[name].words}s" for name in dict.fromkeys(each.name for each in fact.compared)])
    least, most = (f"{100 * find(map(share, fact.compared)):.0f}" for find in (min, max))
    shares = least if least == most else f"{least} to {most}"
    sick = " in a preflight that was unhealthy itself" if preflight.was_unhealthy else ""
    return f"the job reaches {shares}% of what {whose} delivered{when}{sick}, in {names}{_sizes(fact.compared)}"


def _sizes(compared: Sequence[HeldAgainst]) -> str:
    sizes = sorted({int(each.labels["bytes"]) / 2**20 for each in compared if "bytes" in each.labels})
    if not sizes:
        return ""
    return f" of {sizes[0]:g} MiB" if len(sizes) == 1 else f" of {len(sizes)} sizes, {sizes[0]:g} to {sizes[-1]:g} MiB"
