"""What to try where ranks do not load what was saved."""

from ddp_doctor.model.finding import NOTHING_TO_UNDO
from ddp_doctor.remedies.kinds import in_code, remedy

_DOCS = "https://docs.pytorch.org/docs/stable/"

ONE_WRITER = in_code(
    "Save on rank 0 alone, under a name of the step, rename the file when it is whole, and wait before loading",
    "if dist.get_rank() == 0:",
    "    torch.save(state, f'{path}.part'); os.replace(f'{path}.part', path)",
    "dist.barrier()",
    cost="none",
    references=(
        "https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints",
    ),
)

NEW_NAMES = in_code(
    "Give each checkpoint a name of its own: a name that was never looked up is asked of the server",
    "torch.save(state, f'checkpoint-{step}.pt')",
    cost="space, until old checkpoints are removed",
    references=("https://man7.org/linux/man-pages/man5/nfs.5.html",),
)

SHARED_PLACE = remedy(
    "Write checkpoints to a file system that all nodes share, or load on rank 0 and let DDP broadcast",
    scope="job",
    cost="a shared file system may be slower than a node's own disk",
    undo="write to the working directory again",
    untried="the doctor does not know where the job writes its checkpoints",
    references=(_DOCS + "distributed.checkpoint.html",),
)

LOOK_AT_STORAGE = remedy(
    "Look at the file system of the working directory on these nodes: mount options, quota, errors in its log",
    "findmnt --target .",
    "df -h .",
    cost="None: it only prints",
    undo=NOTHING_TO_UNDO,
    untried="the doctor changes no file system",
)
