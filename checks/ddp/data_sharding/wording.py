"""What to try where ranks take wrong shares of their data, or wrong random numbers."""

from ddp_doctor.model.finding import NOTHING_TO_UNDO, Proof, Remedy

_DOCS = "https://docs.pytorch.org/docs/stable/"
_SAMPLER_FILE = (
    'python -c "import inspect, torch; from torch.utils.data import DistributedSampler as S; '
    'print(torch.__version__, inspect.getsourcefile(S), inspect.getsourcefile(torch.manual_seed))"'
)
_JOIN_FILE = (
    'python -c "import inspect, torch; from torch.nn.parallel import DistributedDataParallel as D; '
    'print(torch.__version__, inspect.getsourcefile(D), inspect.getsourcefile(D.join))"'
)
_NO_CODE_OF_THE_JOB = Proof(reason="the doctor runs none of the job's code")

#: The probe runs none of the user's code, so what is left is torch as it is installed on these nodes.
WHICH_SAMPLER = Remedy(
    summary="Look for code that replaces torch's sampler or seeds (sitecustomize, .pth files, a vendor's fork)",
    commands=(_SAMPLER_FILE,),
    scope="node",
    cost="None: it only prints where the code comes from",
    undo=NOTHING_TO_UNDO,
    proof=Proof(reason="the doctor cannot tell beforehand what replaces it"),
    references=(_DOCS + "data.html#torch.utils.data.distributed.DistributedSampler",),
)

WHICH_JOIN = Remedy(
    summary="Look for code that replaces DDP's join() (sitecustomize, .pth files, a vendor's fork)",
    commands=(_JOIN_FILE,),
    scope="node",
    cost="None: it only prints where the code comes from",
    undo=NOTHING_TO_UNDO,
    proof=Proof(reason="the doctor cannot tell beforehand what replaces it"),
    references=(_DOCS + "distributed.algorithms.join.html",),
)

RANK_OF_THE_GROUP = Remedy(
    summary="Leave num_replicas and rank of DistributedSampler out, so that it asks the process group",
    commands=("sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True)",),
    scope="code",
    cost="none",
    undo=NOTHING_TO_UNDO,
    proof=_NO_CODE_OF_THE_JOB,
    references=(_DOCS + "data.html#torch.utils.data.distributed.DistributedSampler",),
)

ONE_SEED = Remedy(
    summary="Give DistributedSampler the same seed on all ranks, and only augmentations a seed of the rank's own",
    commands=("sampler = torch.utils.data.DistributedSampler(dataset, seed=0)",),
    scope="code",
    cost="none",
    undo=NOTHING_TO_UNDO,
    proof=_NO_CODE_OF_THE_JOB,
    references=(_DOCS + "data.html#torch.utils.data.distributed.DistributedSampler",),
)

SET_EPOCH = Remedy(
    summary="Call set_epoch(epoch) of the sampler before each epoch, on every rank",
    commands=("sampler.set_epoch(epoch)",),
    scope="code",
    cost="none",
    undo=NOTHING_TO_UNDO,
    proof=_NO_CODE_OF_THE_JOB,
    references=(_DOCS + "data.html#torch.utils.data.distributed.DistributedSampler",),
)

ONE_DATA_SET = Remedy(
    summary="Compare the data set's files between the nodes, and copy those that differ anew",
    scope="node",
    cost="the time of the copy",
    undo=NOTHING_TO_UNDO,
    proof=Proof(reason="the doctor does not know which copy is right"),
)

EQUAL_STEPS = Remedy(
    summary="Use a sampler that pads (DistributedSampler), or train under model.join()",
    commands=("with model.join():", "    for batch in loader: ..."),
    scope="code",
    cost="join() adds a small all-reduce to each step",
    undo="leave join() out",
    proof=_NO_CODE_OF_THE_JOB,
    references=(_DOCS + "distributed.algorithms.join.html",),
)

SEED_BY_RANK = Remedy(
    summary="Add the rank to the seed of what is to differ between ranks: dropout and augmentations",
    commands=("torch.manual_seed(seed + torch.distributed.get_rank())",),
    scope="code",
    cost="None: DDP broadcasts rank 0's weights, so that the ranks' seeds need not agree",
    undo=NOTHING_TO_UNDO,
    proof=_NO_CODE_OF_THE_JOB,
    references=(_DOCS + "notes/randomness.html",),
)
