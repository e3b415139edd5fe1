"""What to try where ranks take wrong shares of their data, or wrong random numbers."""

from ddp_doctor.model.finding import NOTHING_TO_UNDO
from ddp_doctor.remedies.kinds import in_code, remedy

_DOCS = "https://docs.pytorch.org/docs/stable/"
_SAMPLER_FILE = (
    'python -c "import inspect, torch; from torch.utils.data import DistributedSampler as S; '
    'print(torch.__version__, inspect.getsourcefile(S), inspect.getsourcefile(torch.manual_seed))"'
)
_JOIN_FILE = (
    'python -c "import inspect, torch; from torch.nn.parallel import DistributedDataParallel as D; '
    'print(torch.__version__, inspect.getsourcefile(D), inspect.getsourcefile(D.join))"'
)


#: The probe runs none of the user's code, so what is left is torch as it is installed on these nodes.
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
    "Give DistributedSampler the same seed on all ranks, and only augmentations a seed of the rank's own",
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
