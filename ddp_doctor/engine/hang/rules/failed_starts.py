"""Process groups that cannot be created, and ranks that connect but receive mismatched data."""

import re
from collections.abc import Iterator, Sequence

from ddp_doctor.engine.hang.judge import tells_of_a_peer
from ddp_doctor.engine.hang.rules.common import MOST_LINES, cases, culprits, step_words
from ddp_doctor.engine.hang.rules.last_words import named_cause
from ddp_doctor.engine.hang.rules.settings import outcome_without, proved_settings, spoken_of, with_values, without
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import PROCESS_GROUP
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy, Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.remedies.torch_calls import ONE_GPU_EACH
from ddp_doctor.views.failed_trials import explains, what_did_not_fit, words_of
from ddp_doctor.views.software import nodes_load_different_nccls
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.nodes import host, name_list
from ddp_doctor.wording.ranks import capital, cause, rank_list, ranks_at

#: NCCL init.cc: "Mismatched NCCL version detected : rank 0 version 22705 rank 1 version 22703".
_OTHER_VERSION = "Mismatched NCCL version"
#: NCCL init.cc: "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000".
_DUPLICATE = re.compile(
    r"Duplicate GPU detected\s*: rank (\d+) and rank (\d+) both on CUDA device (\w+)", re.IGNORECASE
)
_CORRECT = remedy("Fix the cause that the exception names", scope="job")


@rule("DD617", "process-group-cannot-start", Consequence.FAILS)
def everywhere(recording: Recording) -> Iterator[Draft]:
    """A process group cannot be created, for a reason that torch, gloo or NCCL names.

    Finds: Reports exceptions of all or most ranks, while the process group is set up or used for the first time, that
        do not concern a peer: an interface that does not exist, or a missing library. If an exception names an active
        setting (NCCL_SOCKET_IFNAME, NCCL_NET, NCCL_ALGO), one rank's exception is enough, and trials without the
        setting prove it. Also reports two ranks on one GPU, which NCCL refuses.
    Why: The job will not start, on any rank.
    Remedy: Fix the cause that the exception names. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME must name interfaces of
        this host. If two ranks use one GPU, choose the device by LOCAL_RANK.
    See: gloo transport/tcp/device.cc ("Unable to find address for")
        NCCL bootstrap.cc ("no socket interface found"), init.cc ("Duplicate GPU detected")
    """
    titles: set[str] = set()
    for case in cases(recording, "raised-everywhere", "raised", "unsure"):
        trial = case.trial
        sharing = sharing_a_gpu(trial)
        if sharing:
            yield _one_gpu(recording, sharing)
            continue
        ranks = pointing_at_settings(recording, trial)
        if case.judgment.kind != "raised":  # one rank's exception concerns only this rank
            ranks = [rank for rank in trial.evidence if rank.raised and not tells_of_a_peer(rank)]
        # If ddp-doctor's own probe fails everywhere, the result is unsure, not a fault.
        if not ranks or not _makes_the_group(ranks[0]) or explains(recording, trial):  # the cause has its own rule
            continue
        draft = _cannot_start(recording, trial, ranks)
        # If NCCL refuses its peers because of their versions, DD550 reports the nodes with other versions.
        versions_differ = _OTHER_VERSION in words_of(ranks[0]) and nodes_load_different_nccls(recording)
        if draft.title not in titles and not versions_differ:
            titles.add(draft.title)  # torchrun's ranks and ddp-doctor's own ranks fail for one cause
            yield draft


def pointing_at_settings(recording: Recording, trial: TrialRecord) -> list[RankEvidence]:
    """Return the ranks that cannot join because of a setting of their node.

    Only the first rank may fail: the rank that creates NCCL's unique id looks for an interface, and the others wait for
    that id.
    """
    return [
        rank
        for rank in trial.evidence
        if _makes_the_group(rank) and not tells_of_a_peer(rank) and spoken_of(recording, words_of(rank), rank.node)
    ]


def _makes_the_group(rank: RankEvidence) -> bool:
    """Return True if the rank is still creating the process group or using it for the first time."""
    return bool(rank.steps) and rank.steps[-1].check == PROCESS_GROUP


def sharing_a_gpu(trial: TrialRecord) -> dict[tuple[int, str], set[int]]:
    """Return the ranks that NCCL found on one GPU, by node and bus number; NCCL counts ranks within the trial."""
    found: dict[tuple[int, str], set[int]] = {}
    for rank in trial.evidence:
        words = rank.output_tail + (rank.raised.message if rank.raised else "")
        for *ends, device in _DUPLICATE.findall(words):
            numbers = [int(end) for end in ends]
            if max(numbers) < len(trial.ranks):
                found.setdefault((rank.node, device), set()).update(trial.ranks[number] for number in numbers)
    return found


def _bus_id(printed: str) -> str:
    """Return the PCI bus id that NCCL prints without separators and leading zeros: 0000:03:00.0 for 3000."""
    digits = printed.zfill(9)
    return f"{digits[:-5]}:{digits[-5:-3]}:{digits[-3:-1]}.{digits[-1]}"


def _one_gpu(recording: Recording, sharing: dict[tuple[int, str], set[int]]) -> Draft:
    ranks = tuple(sorted(set().union(*sharing.values())))
    several = recording.several_nodes
    places = [
        f"{rank_list(sorted(of))} on GPU {_bus_id(printed)}{f' of {host(recording, node)}' if several else ''}"
        for (node, printed), of in sharing.items()
    ]
    more = f"; and {len(places) - MOST_LINES} more GPUs" if places[MOST_LINES:] else ""
    return proved(
        culprits(recording, ranks),
        f"Ranks share a GPU, so NCCL cannot start: {'; '.join(places[:MOST_LINES])}{more}",
        (Evidence(check=PROCESS_GROUP, text=f"NCCL: {place}") for place in places[:MOST_LINES]),
        ONE_GPU_EACH,
        detail='NCCL requires one GPU per rank and fails with "Duplicate GPU detected".',
    )


def _cannot_start(recording: Recording, trial: TrialRecord, ranks: Sequence[RankEvidence]) -> Draft:
    """Return the draft; ``ranks`` raised the exception, and the other ranks of the trial wait for them."""
    first = ranks[0]
    assert first.raised is not None
    message = words_of(first)
    settings = spoken_of(recording, message, first.node)
    left = tuple(name for name in settings if outcome_without(recording, "DD617", name) != "disproved")
    to_blame = proved_settings(recording, "DD617", settings) or (left if len(left) == 1 else ())
    it_has = ""
    if any(name.endswith("_SOCKET_IFNAME") for name in to_blame):
        facts = [there.fact for there in recording.facts(InterfacesFact) if there.node == first.node]
        usable = [name.name for fact in facts for name in fact.interfaces if name.running and name.addresses]
        it_has = f" ({host(recording, first.node)} has {name_list(usable)})" if usable else ""
    is_known = bool(settings) or _OTHER_VERSION in message
    named = None if is_known else named_cause(first, PROCESS_GROUP)
    return proved(
        (Culprit(kind="setting", name=name) for name in to_blame),
        f"The {trial.backend} process group cannot start{with_values(recording, to_blame, first.node)}:"
        f" {cause(message)[:160]}{it_has}",
        (Evidence(check=PROCESS_GROUP, text=text) for text in _alike(ranks)),
        *without(recording, settings),
        *(_after_refusal(message, to_blame) or (named.remedies if named else (_CORRECT,))),
        detail=f"{_who_raised(trial, ranks)}{named.sentence if named else ''}",
        reproduced_by=Reproducer(kind="meet") if settings else None,
    )


def _alike(ranks: Sequence[RankEvidence]) -> Iterator[str]:
    """Yield the messages of ranks, each text once; with the ranks if there are several texts."""
    texts = grouped((" ".join(words_of(rank).split())[:400], rank.rank) for rank in ranks)
    for text, numbers in list(texts.items())[:MOST_LINES]:
        yield f"{rank_list(numbers)}: {text}" if len(texts) > 1 else text


def _who_raised(trial: TrialRecord, ranks: Sequence[RankEvidence]) -> str:
    everyone = len(ranks) == len(trial.ranks)
    raising = capital(rank_list([rank.rank for rank in ranks]))
    who = f"{'Both' if len(ranks) == 2 else f'All {len(ranks)}'} ranks" if everyone else raising
    kinds = name_list(list(dict.fromkeys(rank.raised.type for rank in ranks if rank.raised)))
    waiting = sorted({*trial.ranks} - {rank.rank for rank in ranks})
    others = "" if everyone else f". {capital(rank_list(waiting))} {'waits' if len(waiting) == 1 else 'wait'} for it"
    return f"{who} raised {kinds} in {ranks[0].steps[-1].name}{others}."


def _after_refusal(message: str, to_blame: Sequence[str]) -> tuple[Remedy, ...]:
    if to_blame:
        name = to_blame[0]
        if name.endswith("_SOCKET_IFNAME"):
            return (remedy(f"Set {name} to an interface of this host", "ip -br address", scope="job"),)
        return (remedy(f"Set {name} to a value that this NCCL and these nodes support", f"ddp-doctor explain {name}"),)
    if "interface" in message:
        return (remedy("Set the interface to one that exists on this host", "ip -br address", scope="job"),)
    if _OTHER_VERSION in message:
        return (remedy("Start all nodes from the same image, module or virtual environment"),)
    return ()


@rule("DD621", "ranks-send-what-their-peers-do-not-expect", Consequence.FAILS, explained_by=("DD236", "DD550", "DD551"))
def at_odds(recording: Recording) -> Iterator[Draft]:
    """Ranks connected but do not understand each other's messages.

    Finds: Reports a rank whose exception shows unexpected data from a peer: a message of another length or type,
        another number of ranks, or another call. The rank that reads first raises it, so no rank is named. If the nodes
        or ranks differ in a setting or in NCCL's version, that difference is the finding.
    Why: One rank ends with an internal error, and the others hang or report a broken connection.
    Remedy: Use the same settings, the same NCCL, and the same calls in the same order on all ranks.
    See: NCCL src/bootstrap.cc ("Message truncated", "mismatch in info from procs"), src/misc/socket.cc ("wrong type")
        gloo transport/tcp ("op.preamble.length")
    """
    found = [case for case in cases(recording, "at-odds") if not explains(recording, case.trial)]
    if not found:
        return
    first = found[0]  # later checks fail on the same disagreement
    ranks = [rank for trial, rank in what_did_not_fit(recording) if trial is first.trial]
    checks = [case.check for case in found]
    step = step_words(ranks[0].steps[-1]) if ranks[0].steps else "their first step"
    yield likely(
        NOBODY,
        f"{capital(ranks_at(recording, [rank.rank for rank in ranks]))} received mismatched data in {step} of check"
        f" {checks[0]}: {cause(words_of(ranks[0]))[:160]}",
        (
            *(Evidence(check=checks[0], text=text) for text in _alike(ranks)),
            *first.waiting_evidence,
            *(Evidence(check=check, text=f"the same in check {check}") for check in checks[1:MOST_LINES]),
        ),
        remedy("Use the same settings, the same NCCL and the same calls on all ranks"),
        detail="The rank that reads first reports the mismatch, and may be correct, so the faulty rank is unknown.",
    )
