"""Ranks that ended, by a signal, an exit or an exception."""

import re
import signal
from collections.abc import Iterator, Sequence

from ddp_doctor.engine.hang.judgement import Judgement
from ddp_doctor.engine.hang.rules.common import (
    MOST_LINES,
    check_of,
    confidence,
    culprits,
    evidence,
    in_your_code,
    judged,
    names,
    of_rank,
    proof_words,
    stands,
    who_waits,
    words_of,
)
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy, Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.remedies.kinds import NO_TRIAL, remedy, unset
from ddp_doctor.remedies.torch_calls import ONE_GPU_EACH
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.failed_trials import explains
from ddp_doctor.views.software import nodes_load_different_nccls
from ddp_doctor.wording.findings import finding, proved
from ddp_doctor.wording.nodes import host, name_list
from ddp_doctor.wording.ranks import capital, cause, rank_list, ranks_at, short


@rule("DD612", "rank-died", Severity.ERROR)
def died(recording: Recording) -> Iterator[Draft]:
    """A rank whose process ended before its work was done.

    What it finds
        The first rank that exited or was killed; its exit code or signal, and whether the memory
        cgroup counted an OOM kill at that time.

    Why it matters
        The other ranks report "connection closed by peer", and torchrun on each node calls its own
        first failure the root cause. The rank that went first is the one to look at.

    Remedy
        SIGKILL with an OOM count: more memory, or fewer or smaller ranks. SIGSEGV or SIGBUS: a
        library clash or a full /dev/shm. An exit code: the rank's own output says why.

    References
        signal(7); torch.distributed.elastic.multiprocessing.errors
    """
    for trial, judgement in judged(recording, "died"):
        first = of_rank(trial, judgement.suspects[0])
        where = in_your_code(judgement.step) or f"the check {check_of(trial, judgement)}; {stands(first)}"
        yield proved(
            culprits(recording, judgement.suspects),
            f"{_deaths(recording, trial, judgement)} in {where}{who_waits(judgement)}",
            evidence(recording, trial, judgement),
            _after_death(recording, first),
            detail="The errors of the other ranks only follow from it."
            f"{proof_words(recording, trial, judgement)}{_last_words(first)}",
        )


def _deaths(recording: Recording, trial: TrialRecord, judgement: Judgement) -> str:
    """How each of the suspects ended; those that ended the same way are named together."""
    alike = grouped((_death(trial, of_rank(trial, rank)), rank) for rank in judgement.suspects)
    ends = [f"{ranks_at(recording, ranks)} {death}" for death, ranks in alike.items()]
    return capital(", ".join(ends))


def _death(trial: TrialRecord, rank: RankEvidence) -> str:
    code = rank.exit_code
    if rank.out_of_memory and code == -signal.SIGKILL:
        return "was killed by the kernel for lack of memory (OOM, SIGKILL)"
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if trial.launcher == "torchrun":
        return "ended early"
    return f"exited early with code {code}"


def _last_words(rank: RankEvidence) -> str:
    lines = [line for line in rank.output_tail.splitlines() if line.strip()]
    return f" Its last output: {lines[-1][:200]}" if lines else ""


def _after_death(recording: Recording, rank: RankEvidence) -> Remedy:
    code = rank.exit_code
    several = recording.world is not None and recording.world.nnodes > 1
    killed = "sudo dmesg -T | grep -i 'killed process'"
    killed += f"   # on {host(recording, rank.node)}" if several else ""
    if rank.out_of_memory:
        return remedy(
            "Give the job more memory (cgroup or --mem), or run fewer ranks per node", killed, scope="job"
        )
    if code == -signal.SIGKILL:
        return remedy(
            "Find out who sent the signal: the kernel for lack of memory, a time limit, an epilog, an"
            " administrator",
            killed,
        )
    if code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL):
        return remedy(
            "Look for clashing native libraries (LD_LIBRARY_PATH, LD_PRELOAD) or a full /dev/shm",
            "ldconfig -p | grep -e nccl -e cuda",
            "df -h /dev/shm",
        )
    if code is not None and code < 0:
        return remedy("Find out who sent the signal: a time limit, an epilog, an administrator")
    return remedy("Read the rank's last output: no signal ended it", scope="code")


@rule("DD613", "rank-raised-an-exception", Severity.ERROR)
def raised(recording: Recording) -> Iterator[Draft]:
    """A rank that failed with an exception of its own.

    What it finds
        A rank whose probe raised an exception that does not speak of a peer, while others did not.

    Why it matters
        The peers wait for it, or report a broken connection; only this rank's words are a cause.

    Remedy
        The exception's text and line.

    References
        torch.distributed.elastic.multiprocessing.errors, which reports the earliest failure
    """
    for trial, judgement in judged(recording, "raised"):
        lacking = {rank.rank for rank in _without_interface(recording, trial)}
        if _sharing(trial) or explains(recording, trial) or lacking.issuperset(judgement.suspects):
            continue  # process-group-cannot-start, or a rule of the cause, names who is concerned
        first = of_rank(trial, judgement.suspects[0])
        assert first.raised is not None
        yield finding(
            culprits(recording, judgement.suspects),
            f"{names(recording, judgement.suspects)} raised {_raised_where(first, check_of(trial, judgement))}"
            f"{who_waits(judgement)}",
            evidence(recording, trial, judgement),
            remedy("Correct what the exception reports; the other ranks only wait for this one"),
            confidence=confidence(recording, trial, judgement),
            detail=f"It says: {_sentence(words_of(first))}{proof_words(recording, trial, judgement)}",
        )


def _raised_where(rank: RankEvidence, check: str) -> str:
    """The exception and its line; one of the user's model in DDP stands in the words of the check's own."""
    assert rank.raised is not None
    if rank.raised.type == "StepFailed" and rank.steps:
        return f"{rank.raised.message.partition(': ')[0]} in the {rank.steps[-1].name} of your model in DDP"
    return f"{rank.raised.type} at {short(rank.raised.where)} in the check {check}"


def _sentence(message: str) -> str:
    said = " ".join(message[:400].split()) or "nothing"
    return said if said[-1] in ".!?" else f"{said}."


#: NCCL bootstrap.cc, and the variable that chooses.
_NO_INTERFACE = "no socket interface found"
_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
#: NCCL init.cc: "Mismatched NCCL version detected : rank 0 version 22705 rank 1 version 22703".
_OTHER_VERSION = "Mismatched NCCL version"
#: NCCL init.cc: "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000".
_DUPLICATE = re.compile(
    r"Duplicate GPU detected\s*: rank (\d+) and rank (\d+) both on CUDA device (\w+)", re.IGNORECASE
)


@rule("DD617", "process-group-cannot-start", Severity.ERROR)
def everywhere(recording: Recording) -> Iterator[Draft]:
    """A process group that cannot be made, for a reason that torch, gloo or NCCL names.

    What it finds
        The same exception on all ranks while the process group is set up or used for the first time:
        an interface that does not exist, a library that is missing. Where NCCL_SOCKET_IFNAME leaves NCCL no
        interface, one rank's exception is enough. And two ranks on one GPU, which NCCL refuses.

    Why it matters
        The job will not start, on any rank.

    Remedy
        What the exception names. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME must name interfaces of
        this host. Two ranks on one GPU: choose the device by LOCAL_RANK.

    References
        gloo transport/tcp/device.cc ("Unable to find address for")
        NCCL bootstrap.cc ("no socket interface found"), init.cc ("Duplicate GPU detected")
    """
    titles: set[str] = set()
    for trial, judgement in judged(recording, "raised-everywhere", "raised", "unsure"):
        sharing = _sharing(trial)
        if sharing:
            yield _one_gpu(recording, sharing)
            continue
        alike = judgement.kind == "raised-everywhere"
        ranks = list(trial.evidence) if alike else _without_interface(recording, trial)
        # A probe of the doctor's own that fails everywhere is unsure, not a fault.
        if not ranks or not _makes_the_group(ranks[0]):
            continue
        if explains(recording, trial):
            continue  # the rule of the cause reports it
        draft = _cannot_start(recording, trial, ranks)
        if draft.title not in titles and not _versions_differ(recording, ranks[0]):
            titles.add(draft.title)  # torchrun's ranks and the doctor's own fail for one cause
            yield draft


def _versions_differ(recording: Recording, rank: RankEvidence) -> bool:
    """Whether NCCL refuses its peers for their versions, and DD550 names the nodes with other ones."""
    return _OTHER_VERSION in words_of(rank) and nodes_load_different_nccls(recording)


def _without_interface(recording: Recording, trial: TrialRecord) -> list[RankEvidence]:
    """The ranks that NCCL leaves without an interface, where a setting of their node chooses it.

    Only the rank that makes NCCL's unique id may come so far; the others wait for that id.
    """
    named = {node.node for node in recording.facts(EnvVars) if _NCCL_INTERFACE in node.fact.variables}
    return [
        rank
        for rank in trial.evidence
        if rank.node in named and _NO_INTERFACE in words_of(rank) and _makes_the_group(rank)
    ]


def _makes_the_group(rank: RankEvidence) -> bool:
    """Whether the rank is still setting up the process group, or using it for the first time."""
    return bool(rank.steps) and rank.steps[-1].check == "process_group"


def _sharing(trial: TrialRecord) -> dict[tuple[int, str], set[int]]:
    """The ranks that NCCL found on one GPU, by node and bus number; NCCL counts ranks within the trial."""
    found: dict[tuple[int, str], set[int]] = {}
    for rank in trial.evidence:
        said = rank.output_tail + (rank.raised.message if rank.raised else "")
        for first, second, device in _DUPLICATE.findall(said):
            if max(int(first), int(second)) < len(trial.ranks):
                ends = (trial.ranks[int(first)], trial.ranks[int(second)])
                found.setdefault((rank.node, device), set()).update(ends)
    return found


def _one_gpu(recording: Recording, sharing: dict[tuple[int, str], set[int]]) -> Draft:
    ranks = tuple(sorted(set().union(*sharing.values())))
    places = [f"{rank_list(sorted(of))} on {_device(recording, at)}" for at, of in sharing.items()]
    more = f"; and {len(places) - MOST_LINES} more GPUs" if places[MOST_LINES:] else ""
    return proved(
        culprits(recording, ranks),
        f"NCCL cannot start because ranks share a GPU: {'; '.join(places[:MOST_LINES])}{more}",
        (Evidence(check="process_group", text=f"NCCL: {place}") for place in places[:MOST_LINES]),
        ONE_GPU_EACH,
        detail='NCCL refuses a GPU that two ranks use ("Duplicate GPU detected"); each needs its own.',
    )


def _device(recording: Recording, at: tuple[int, str]) -> str:
    """A GPU as NCCL names it, by its bus number, and its host where there are several."""
    node, bus = at
    several = recording.world is not None and recording.world.nnodes > 1
    return f"CUDA device {bus}" + (f" of {host(recording, node)}" if several else "")


def _cannot_start(recording: Recording, trial: TrialRecord, ranks: Sequence[RankEvidence]) -> Draft:
    """``ranks`` raised it; the others of the trial wait for them."""
    first = ranks[0]
    assert first.raised is not None
    message = words_of(first)
    setting = _interface_setting(recording, message)
    raising = capital(rank_list([rank.rank for rank in ranks]))
    everyone = len(ranks) == len(trial.ranks)
    who = f"{'Both' if len(ranks) == 2 else f'All {len(ranks)}'} ranks" if everyone else raising
    others = "" if everyone else "; the other ranks wait for it"
    return proved(
        (Culprit(kind="setting", name=setting),) if setting else (),
        f"The {trial.backend} process group cannot start{_with(recording, first.node, setting) if setting else ''}:"
        f" {cause(message)[:160]}{_it_has(recording, first.node) if setting else ''}",
        Evidence(check="process_group", text=message[:400]),
        *_after_refusal(recording, message, setting),
        detail=f"{who} raised {first.raised.type} in {first.steps[-1].name}{others}.",
        reproduced_by=Reproducer(kind="meet") if setting else None,
    )


def _with(recording: Recording, node: int, setting: str) -> str:
    """`` with GLOO_SOCKET_IFNAME=ib0``, as the node has it, where it is set there."""
    environments = [env.fact.variables for env in recording.facts(EnvVars) if env.node == node]
    return "".join(f" with {shown(setting, set_[setting])}" for set_ in environments if setting in set_)


def _it_has(recording: Recording, node: int) -> str:
    """`` (vm has lo and eth0)``: the node's interfaces that ranks could use."""
    facts = [there.fact for there in recording.facts(InterfacesFact) if there.node == node]
    usable = [name.name for fact in facts for name in fact.interfaces if name.running and name.addresses]
    return f" ({host(recording, node)} has {name_list(usable)})" if usable else ""


def _after_refusal(recording: Recording, message: str, setting: str | None) -> tuple[Remedy, ...]:
    if setting:
        names_it = remedy(f"Set {setting} to an interface of this host", "ip -br address", scope="job")
        return (*_without(recording, setting), names_it)
    if "interface" in message:
        return (remedy("Correct the interface that the error names", "ip -br address", scope="job"),)
    if _OTHER_VERSION in message:
        summary = "Start all nodes from the same image, module or virtual environment"
        return (remedy(summary),)
    return (remedy("Correct what the exception names", scope="job"),)


def _without(recording: Recording, name: str) -> Iterator[Remedy]:
    """The variable taken away, with the value that it has on the first node."""
    values = [node.fact.variables[name] for node in recording.facts(EnvVars) if name in node.fact.variables]
    if values:
        yield unset({name: values[0]}, "the library then chooses an interface itself", proof=NO_TRIAL)


def _interface_setting(recording: Recording, message: str) -> str | None:
    if "find address for" in message:
        return "GLOO_SOCKET_IFNAME"
    if _NO_INTERFACE not in message:
        return None
    environments = [node.fact.variables for node in recording.facts(EnvVars)]
    named = any(_NCCL_INTERFACE in variables for variables in environments)
    return _NCCL_INTERFACE if named else None
