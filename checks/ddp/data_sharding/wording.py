"""The facts of all ranks, the ranks that differ from most, and their wording in findings."""

from collections.abc import Callable, Mapping, Sequence

from ddp_doctor.facts.ddp.data_sharding import DataSharding, Share
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.kinds import in_code, remedy
from ddp_doctor.wording.differences import Split, split
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, name_list
from ddp_doctor.wording.ranks import rank_culprits, ranks_at

_DOCS = "https://docs.pytorch.org/docs/stable/"
_SAMPLER_FILE = (
    'python -c "import inspect, torch; from torch.utils.data import DistributedSampler as S; '
    'print(torch.__version__, inspect.getsourcefile(S), inspect.getsourcefile(torch.manual_seed))"'
)
_JOIN_FILE = (
    'python -c "import inspect, torch; from torch.nn.parallel import DistributedDataParallel as D; '
    'print(torch.__version__, inspect.getsourcefile(D), inspect.getsourcefile(D.join))"'
)


#: The probe runs none of the user's code, so the cause is the torch that is installed on these nodes.
WHICH_SAMPLER = remedy(
    "Look for code that replaces torch's sampler or seeds (sitecustomize, .pth files, a vendor's fork)",
    _SAMPLER_FILE,
    cost="None: it only prints where the code comes from",
    undo=NOTHING_TO_UNDO,
    untried="the doctor cannot tell beforehand what replaces it",
    references=(_DOCS + "data.html#torch.utils.data.distributed.DistributedSampler",),
)

WHICH_JOIN = remedy(
    "Look for code that replaces DDP's join() (sitecustomize, .pth files, a vendor's fork)",
    _JOIN_FILE,
    cost="None: it only prints where the code comes from",
    undo=NOTHING_TO_UNDO,
    untried="the doctor cannot tell beforehand what replaces it",
    references=(_DOCS + "distributed.algorithms.join.html",),
)

RANK_OF_THE_GROUP = in_code(
    "Leave num_replicas and rank of DistributedSampler out, so that it asks the process group",
    "sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True)",
    cost="none",
    references=(_DOCS + "data.html#torch.utils.data.distributed.DistributedSampler",),
)

ONE_SEED = in_code(
    "Give DistributedSampler the same seed on all ranks; only augmentations take a seed by rank",
    "sampler = torch.utils.data.DistributedSampler(dataset, seed=0)",
    cost="none",
    references=(_DOCS + "data.html#torch.utils.data.distributed.DistributedSampler",),
)

SET_EPOCH = in_code(
    "Call set_epoch(epoch) of the sampler before each epoch, on every rank",
    "sampler.set_epoch(epoch)",
    cost="none",
    references=(_DOCS + "data.html#torch.utils.data.distributed.DistributedSampler",),
)

ONE_DATA_SET = remedy(
    "Compare the data set's files between the nodes, and copy those that differ anew",
    cost="the time of the copy",
    undo=NOTHING_TO_UNDO,
    untried="the doctor does not know which copy is right",
)

EQUAL_STEPS = in_code(
    "Use a sampler that pads (DistributedSampler), or train under model.join()",
    "with model.join():",
    "    for batch in loader: ...",
    cost="join() adds a small all-reduce to each step",
    undo="leave join() out",
    references=(_DOCS + "distributed.algorithms.join.html",),
)

SEED_BY_RANK = in_code(
    "Add the rank to the seed of what is to differ between ranks: dropout and augmentations",
    "torch.manual_seed(seed + torch.distributed.get_rank())",
    cost="None: DDP broadcasts rank 0's weights, so that the ranks' seeds need not agree",
    references=(_DOCS + "notes/randomness.html",),
)


Facts = Mapping[int, DataSharding]
#: Indices that a sentence names.
_NAMED = 8


def by_rank(recording: Recording) -> Facts:
    """The facts by original rank, in the order of the group; none where one is missing: it may hold other indices."""
    ranks = sorted(recording.facts(DataSharding), key=lambda rank: rank.fact.group_rank)
    facts = {rank.rank or 0: rank.fact for rank in ranks}
    return facts if ranks and len(facts) == ranks[0].fact.world_size else {}


def cases(facts: Facts) -> list[dict[int, Share]]:
    """The shares of all ranks, by rank, for each data set in turn."""
    each = [fact.shares for fact in facts.values()]
    return [dict(zip(facts, shares, strict=True)) for shares in zip(*each, strict=False)]


def differing(facts: Facts, what: Callable[[Share], int | None]) -> Split[int] | None:
    """How the ranks' shares differ in something; None where they agree."""
    values = {rank: tuple(dict.fromkeys(what(share) for share in fact.shares)) for rank, fact in facts.items()}
    return split({rank: (value, name_list([str(number) for number in value])) for rank, value in values.items()})


def parted(recording: Recording, parts: Split[int], unit: str = "") -> str:
    """``0 on rank 0 and rank 1; 7 on rank 2``; of many values the most frequent."""
    places = [f"{shown}{unit} on {ranks_at(recording, ranks)}" for shown, ranks in parts.groups]
    more = len(places) - NAMES_IN_A_SENTENCE
    return "; ".join(places[:NAMES_IN_A_SENTENCE]) + (f" and {more} more" if more > 0 else "")


def samples(indices: Sequence[int]) -> str:
    """``samples 3, 7 and 12 more`` of many."""
    return f"sample{'s' if len(indices) > 1 else ''} {some(indices)}"


def some(indices: Sequence[int]) -> str:
    """``3, 7 and 12 more`` of many."""
    named = ", ".join(str(index) for index in indices[:_NAMED])
    more = len(indices) - _NAMED
    return f"{named} and {more} more" if more > 0 else named


def draft(
    recording: Recording,
    title: str,
    detail: str,
    blamed: Sequence[int],
    evidence: Evidence,
    *remedies: Remedy,
    confidence: Confidence = Confidence.LIKELY,
) -> Draft:
    """A finding about ranks' data; ``blamed`` are original ranks."""
    return finding(
        rank_culprits(recording, DataSharding, blamed),
        title,
        evidence,
        *remedies,
        confidence=confidence,
        detail=f"{detail} None of your own code took part.",
    )
