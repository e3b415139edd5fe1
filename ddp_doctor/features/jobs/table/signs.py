"""Signs of what makes jobs fail: texts in a job's output.

A line of output is examined only if it contains a word of a sign, so the words should not occur in healthy lines. A
sign that belongs to no cause (pointers.py) shows where to look, which process died or which one is a victim.
"""

from functools import partial
from typing import Literal, NamedTuple

from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.known_error import Page

#: The start of a warning of NCCL, after the name of its source file.
NCCL_WARN = r":\d{1,5} (?:\(\w{1,80}\) )?NCCL WARN "
#: Harmless warnings of NCCL, as a regular expression; 2.32 prints the last two if libibverbs is missing.
HARMLESS_WARNINGS = "libibverbs|real path|Plugin|Only EFA|falling back|lib wrapper not initialized|requires GDRCopy"
#: The cause that NCCL's own message states, if no other cause is known.
NCCL_STATES = "nccl-states-cause"
#: The cause for exceptions of drivers and libraries.
LIBRARY_EXCEPTION = "library-exception"
#: The causes for exceptions about paths and about the text of a configuration.
FILE_NOT_ACCESSIBLE, CONFIGURATION_INVALID = "file-not-accessible", "configuration-invalid"
#: The start of the note that reading/ras.py adds to a line of NCCL's RAS.
RAS_NOTE = "[RAS: "
#: The start of the line that reading/containers.py adds for each process of a py-spy dump.
STACK_NOTE = "py-spy dump: "
#: Commands that watch a job and are ended with it.
MONITORS = (
    r"(?:nvidia-smi|dcgmi|gpustat|nvtop|rocm-smi|\b(?:h?top|vmstat|iostat|mpstat|sar|dstat|tail|sleep|monitor\w*)\b)"
)
#: The start of nccl-tests' output. Signs with this word count if its results never came.
TEST_BEGINS = "# Using devices"

#: The source of a sign. If several report one failure, the first in this order counts.
Tier = Literal["kernel", "exception", "recorder", "ras", "nccl", "watchdog", "launcher"]
#: A cause is reported by its own text. A victim shows that another process failed. A pointer shows where to look (an
#: exit code, the rank of a timeout). Advice is printed for many causes and is evidence of none. Context is a fact of
#: the job.
Role = Literal["cause", "victim", "pointer", "advice", "context"]


class Sign(NamedTuple):
    """A text in a job's output that has a meaning.

    ``one_of``: a line with any of these words, spelled exactly so and in ASCII, is examined. ``pattern``: a regular
    expression that the line must also match; its named groups are kept as values. ``lines``: how many lines of the same
    process the pattern may span, beginning with the line of the word. ``beside``: it counts only if a sign with one of
    these ids is also in the job's output. ``unless``: only the last occurrence in a file counts, and only if none of
    these words follows it. ``is_final``: its process prints nothing more of its own. ``run_code``: the rule of ``run``
    that reports it if NCCL prints it before a trial fails. ``page``: its explanation, if it belongs to no cause.
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
        """The words of ``one_of``. A line with any of them is examined."""
        return (self.one_of,) if isinstance(self.one_of, str) else self.one_of


class Signs:
    """Makers of the signs of one tier."""

    def __init__(self, tier: Tier) -> None:
        self.sign = partial(Sign, tier=tier)
        self.proof = partial(self.sign, confidence=Confidence.PROVED)
        self.hint = partial(self.sign, confidence=Confidence.POSSIBLE)  # counts if nothing better is known
        self.pointer = partial(self.sign, role="pointer")
        self.victim = partial(self.sign, role="victim")
        self.context = partial(self.sign, role="context")


#: Signs in a rank's own exceptions.
own = Signs("exception")
proof, hint, pointer, victim, context = own.proof, own.hint, own.pointer, own.victim, own.context
#: Signs in messages of others.
kernel, ras, nccl = Signs("kernel"), Signs("ras"), Signs("nccl")
watchdog, launcher = Signs("watchdog"), Signs("launcher")
