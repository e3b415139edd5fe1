"""Signs of what makes jobs fail: texts in a job's output.

A line of output is looked at more closely only where it holds one of the words of a sign, so words are chosen that
healthy lines do not have. A sign that belongs to no cause (pointers.py) tells where to look, who died or who is a
victim.
"""

from functools import partial
from typing import Literal, NamedTuple

from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.known_error import Page

#: What may stand in front of a warning of NCCL, behind the name of its source file.
NCCL_WARN = r":\d{1,5} (?:\(\w{1,80}\) )?NCCL WARN "
#: Harmless warnings of NCCL, as a regular expression; 2.32 prints the last two if libibverbs is missing.
HARMLESS_WARNINGS = "libibverbs|real path|Plugin|Only EFA|falling back|lib wrapper not initialized|requires GDRCopy"
#: The cause that NCCL's own message states, if no other cause is known.
NCCL_STATES = "nccl-states-cause"
#: The cause for exceptions of drivers and libraries.
LIBRARY_EXCEPTION = "library-exception"
#: The causes for exceptions about paths and about the text of a configuration.
FILE_NOT_ACCESSIBLE, CONFIGURATION_INVALID = "file-not-accessible", "configuration-invalid"
#: Begins the note that reading/ras.py puts behind a line of NCCL's RAS.
RAS_NOTE = "[RAS: "
#: Begins the line that reading/containers.py adds for each process of a py-spy dump.
STACK_NOTE = "py-spy dump: "
#: Commands that watch a job, and are ended with it.
MONITORS = (
    r"(?:nvidia-smi|dcgmi|gpustat|nvtop|rocm-smi|\b(?:h?top|vmstat|iostat|mpstat|sar|dstat|tail|sleep|monitor\w*)\b)"
)
#: How the output of nccl-tests begins; signs with this word count where its results never came.
TEST_BEGINS = "# Using devices"

#: Whose evidence counts first, where several speak of one failure; in this order.
Tier = Literal["kernel", "exception", "recorder", "ras", "nccl", "watchdog", "launcher"]
#: A cause speaks of itself; a victim tells that another process failed; a pointer tells where to look (an exit code,
#: the rank of a time-out); advice is printed beside many causes and is evidence of none; context is a fact of the job.
Role = Literal["cause", "victim", "pointer", "advice", "context"]


class Sign(NamedTuple):
    """A text in a job's output that says something.

    ``one_of``: a line with any of these words, exactly so written and of ASCII, is looked at. ``pattern``: a regular
    expression that the line must match as well; its named groups are kept as values. ``lines``: how many lines of the
    same process the pattern may reach over, the first of them being the one with the words. ``beside``: it counts only
    where a sign of one of these ids is in the job's output, too. ``unless``: only the last in a file counts, and only
    where none of these words follows it. ``is_final``: its process prints nothing more of its own. ``run_code``: the
    rule of ``run`` that names it where NCCL says it before a trial fails. ``page``: what is behind it, where it is of
    no cause.
    """

    one_of: str | tuple[str, ...]
    pattern: str = ""
    tier: Tier = "exception"
    role: Role = "cause"
    confidence: Confidence = Confidence.LIKELY
    lines: int = 1
    beside: tuple[str, ...] = ()
    is_final: bool = False
    unless: tuple[str, ...] = ()
    run_code: str = ""
    page: Page | None = None
    id: str = ""  # its key in the row

    @property
    def words(self) -> tuple[str, ...]:
        """A line with any of these is looked at."""
        return (self.one_of,) if isinstance(self.one_of, str) else self.one_of


class Signs:
    """Makers of the signs of one tier."""

    def __init__(self, tier: Tier) -> None:
        self.sign = partial(Sign, tier=tier)
        self.proof = partial(self.sign, confidence=Confidence.PROVED)
        self.hint = partial(self.sign, confidence=Confidence.POSSIBLE)  # it counts where nothing better is known
        self.pointer = partial(self.sign, role="pointer")
        self.victim = partial(self.sign, role="victim")
        self.context = partial(self.sign, role="context")


#: Of a rank's own exceptions.
own = Signs("exception")
proof, hint, pointer, victim, context = own.proof, own.hint, own.pointer, own.victim, own.context
#: Of what others say.
kernel, ras, nccl = Signs("kernel"), Signs("ras"), Signs("nccl")
watchdog, launcher = Signs("watchdog"), Signs("launcher")
