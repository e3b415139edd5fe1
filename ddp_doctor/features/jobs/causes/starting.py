"""The wait of a job for nodes, ranks or resources before all its ranks exist; pure."""

import re
from collections.abc import Sequence
from textwrap import shorten
from typing import NamedTuple

from ddp_doctor.features.jobs.causes.evidence import Output, lines
from ddp_doctor.features.jobs.causes.judged import Judged
from ddp_doctor.features.jobs.facts import SignSeen
from ddp_doctor.features.jobs.table import cause_named
from ddp_doctor.features.jobs.table.unproven import CREATE_GROUPS, GET_RESOURCES, START_ALL
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Remedy
from ddp_doctor.wording.ranks import rank_list

#: Frames of torchrun, and of ranks, during such a wait.
_OF_TORCHRUN = re.compile(r"torch/distributed/elastic/rendezvous/\w+\.py:")
_OF_RANKS = re.compile(r"torch/distributed/rendezvous\.py:| in init_process_group$", re.MULTILINE)
#: Last lines of exceptions that end a wait.
_ENDS_A_WAIT = re.compile(r"KeyboardInterrupt|SignalException|time(?:d )?out", re.IGNORECASE)
#: Lines that torch may print below an attempt to connect.
_LINES_OF_A_TRY = 2
#: Maximum characters of a quoted line, and maximum number of listed ranks.
_LONGEST_WORDS = 80
_MOST_RANKS = 10_000


class Wait(NamedTuple):
    """The wait of a job: a clause, the lines that show it, the fix and the next step."""

    what: str
    signs: Sequence[SignSeen]
    remedy: Remedy = START_ALL
    next_check: str = "ddp-doctor run with the same launcher, which reports the nodes that do not join"


def waited_for(output: Output) -> Wait | None:
    """Return the wait at the end of the output, or None if the job did not wait."""
    notices = [] if output.shows_progress else output.signs("waits-for-resources")[-1:]
    if resources := [sign for sign in notices if not output.got_over(sign)]:
        text = shorten(resources[0].where.text, _LONGEST_WORDS, placeholder=" …")
        check = "squeue --start and scontrol show job JOB, or ray status"
        return Wait(f"the job got no resources (“{text}”)", resources, GET_RESOURCES, check)
    ended = [sign for sign in output.signs("exception") if _ENDS_A_WAIT.search(sign.where.text)]
    of_torchrun = [sign for sign in ended if _OF_TORCHRUN.search(sign.values.get("frames", ""))]
    of_torchrun = of_torchrun or _at_the_end(output, "in-rendezvous")
    stores = output.signs("store-clients", "store-barrier", "waits-in-store-barrier")
    if wait := _in_store(stores, "nodes joined torchrun's rendezvous" if of_torchrun else "ranks joined the job"):
        return wait
    members = output.signs("member-came")
    if members and not output.signs("members-complete") and not output.died:
        came = {int(sign.values["member"]) for sign in members}
        if absent := sorted({*range(min(int(members[0].values["world"]), _MOST_RANKS))} - came):
            who, others = rank_list(sorted(came)), rank_list(absent)
            # Only rank 0 prints that all came, perhaps into another file.
            absence = f"{others} did not" if 0 in came else f"the output does not show whether {others} did"
            return Wait(f"{who} came to Lightning's start, and {absence}", members)
    agents = [sign for sign in output.signs("store-timeout") if "/torchelastic/" in sign.values.get("keys", "")]
    if of_torchrun or agents:
        is_late = bool(agents) or "Timeout" in of_torchrun[-1].where.text
        late = ", which did not come in time" if is_late else ""
        return Wait(f"torchrun waited at its rendezvous for other nodes{late}", of_torchrun or agents)
    if of_ranks := [sign for sign in ended if _OF_RANKS.search(sign.values.get("frames", ""))]:
        return Wait("a rank was in init_process_group, and other ranks did not join", of_ranks)
    tried = _at_the_end(output, "store-tried-again")
    return Wait(f"the rendezvous at {tried[-1].values['at']} did not answer", tried[-1:]) if tried else None


def _in_store(stores: Sequence[SignSeen], of: str) -> Wait | None:
    for sign in [sign for sign in stores if "came" in sign.values][-1:]:
        count, number = f"{sign.values['came']} of {sign.values['world']}", sign.values.get("number", "1")
        if int(sign.values["came"]) >= int(sign.values["world"]):
            return None
        if number != "1":
            stacks = "py-spy dump --pid PID of a rank that prints no timeout"
            what = f"only {count} ranks created process group {number}, and the job had started"
            return Wait(what, [sign], CREATE_GROUPS, stacks)
        return Wait(f"only {count} {of}", [sign])
    return None


def _at_the_end(output: Output, name: str) -> list[SignSeen]:
    ends = {file.name: file.said or file.lines for file in output.fact.files}
    return [sign for sign in output.signs(name) if ends.get(sign.where.file, 0) - sign.where.line <= _LINES_OF_A_TRY]


def still_waiting(wait: Wait, ends: Sequence[Judged] = ()) -> Judged:
    """Return the cause of a job that waited to the end of its output, or until it was stopped (``ends``)."""
    return Judged(
        cause_named("job-starting"),
        Confidence.POSSIBLE,
        (*lines(wait.signs), *(line for judged in ends for line in judged.lines)),
        values={"what": f"{wait.what}{' until it was stopped' if ends else ''}"},
        remedies=(wait.remedy,),
        next_check=wait.next_check,
    )
