"""What the last lines of an output show: a good end, steps that continue to the end, or neither.

    epoch 9: loss 0.113                        steps: the same text with another number, at least three times
    Training complete, model saved to out.pt   a good end
    NCCL INFO comm 0x7f rank 0 - Destroy COMPLETE

No list of programs is needed for steps. A program that repeats a number while it waits, retries or counts down is not at
work, and NCCL's lines about its channels are not steps.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ddp_doctor.model.base import grouped

#: Lines that a program prints after its good end: notices of libraries, an empty bar, a shell's time.
_LINES_AFTER_THE_END = 40
#: Lines of one shape that make steps, and how far from the end of the output the last of them may be.
_LEAST_STEPS = 3
_LINES_AFTER_A_STEP = 20
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
_WORK = re.compile(
    r"\b(?:step|iter|iteration|epoch|batch|loss|samples|tokens)s?\b[^a-z]{0,5}\d|\d%\||\bit/s|s/it\b", re.IGNORECASE
)
_OF_NCCL = re.compile(r"NCCL (?:INFO|TRACE|WARN)|STALL|no progress|retry")
#: Lines that differ in a number because they count tries, waiting, faults, processes or downloads.
_NO_STEP = re.compile(
    r"retr(?:y|ies)|attempt|wait|connect|time.?out|heartbeat|fail|error|warn|stuck|pending|start|load|tokeniz|queue|sleep"
    r"|rank|worker|node|gpu|device|process|thread|pid|port|frame|0x|file|shard",
    re.IGNORECASE,
)
_RUN = r"(?:training|trainer|train|job|run|program|script|experiment|fine-?tuning|evaluation|testing|benchmark|main|all ranks)"
_DONE = r"(?:completed?|finished|done|concluded|succeeded|successful(?:ly)?|end time|reached)"
_GOOD = re.compile(
    rf"\b{_RUN}\b[^.:;]{{0,60}}\b{_DONE}\b|\b{_DONE}\b[^.:;]{{0,30}}\b{_RUN}\b|\bend time of running\b"
    r"|\b(?:saved?|saving|wrote|written|uploaded|exported)\b.{0,80}(?:model|checkpoint|ckpt|weights|state|results?|\.pth?\b"
    r"|\.bin\b|\.safetensors\b)|\b(?:model|checkpoint|weights|results?)s?\b.{0,60}\b(?:saved|written|uploaded|exported)\b"
    r"|destroy(?:ed|ing)? (?:the )?process groups?|destroy_process_group\(\) was not called before program exit"
    r"|Destroy COMPLETE|train_runtime|`max_(?:epochs|steps)=\d+` reached"
    r"|\b[Tt]otal (?:training )?(?:time|runtime)\b|\btraining time\b|\b(?:Run (?:summary|history)|Synced) ?:?"
    r"|\bepoch[ :]\d+[ :,]+(?:done|finished|completed?)\b|\bdiagnostics completed\b|# Avg bus bandwidth|\bOut of bounds values : 0 OK"
    r"|\b(?:final|best|test|val(?:idation)?|eval(?:uation)?)[ _-]{0,3}(?:loss|acc(?:uracy)?|perplexity|ppl|score|results?)\b"
    r"|\bexit(?:ed)?(?: with)?(?: exit)?[ -](?:code|status)[:= ]{1,3}0\b|\bState[:=] ?COMPLETED\b|^real\s+\d+m"
    r"|^(?:all )?(?:done|finished|completed?|success|ok|passed|bye|goodbye)\b[^a-z]{0,20}$",
    re.IGNORECASE | re.ASCII,
)
#: The last of a known number: 500/500, epoch 10 of 10, 100%|###|.
_LAST_OF = re.compile(r"(?<![\d./])(?P<all>[1-9]\d{0,8}) ?(?:/|of) ?(?P=all)(?![\d./])|\b100(?:\.0+)? ?%")
_BAD = re.compile(
    r"\bnot (?:be |been )?(?:saved|written|completed?|finished|done)|\bunable|\bcould not|\bcannot|fail|error|incomplete"
    r"|\bwill be (?:saved|written)|\bbefore (?:training|the run)|abort|kill|exception|(?:download|load|tokeniz|map|cach)\w*\b"
    r".{0,40}100 ?%|shards?|NCCL INFO (?!.*Destroy COMPLETE)",
    re.IGNORECASE,
)
_UNUSUAL = re.compile(
    r"\b(?:fatal|error|exception|fail\w*|abort\w*|killed|terminated|denied|refused|unreachable|no route|stall\w*|stuck|panic"
    r"|HSA_STATUS_\w+|hang|hung|mismatch)\b|\bWARN",
    re.IGNORECASE,
)

#: What a shell or launcher prints about a process that it ended.
_ONLY_ENDED = re.compile(
    r"(?:\S+: )?(?:Terminated|Killed|Aborted)(?: .{0,200})?|(?:srun|slurmstepd)\b.*", re.IGNORECASE
)


class Conclusion(NamedTuple):
    """The numbers of the lines, or None: the good end or last step, and the most telling line otherwise."""

    good: int | None = None
    unusual: int | None = None


def conclusion(tail: Sequence[tuple[int, str]]) -> Conclusion:
    """Return what the last lines show. ``tail`` has their numbers and texts, the last line first."""
    good = next((number for number, text in tail[:_LINES_AFTER_THE_END] if _is_good_end(text)), None)
    telling = [number for number, text in tail if _UNUSUAL.search(text) and not _ONLY_ENDED.fullmatch(text.strip())]
    unusual = telling[0] if telling else None
    return Conclusion(good or _last_step(tail), unusual or next((number for number, _ in tail), None))


def _is_good_end(text: str) -> bool:
    return (_GOOD.search(text) or _LAST_OF.search(text)) is not None and not _BAD.search(text)


def _last_step(tail: Sequence[tuple[int, str]]) -> int | None:
    """The last of several lines that differ in their numbers alone."""
    near_the_end = {_NUMBER.sub("0", text): number for number, text in reversed(tail[:_LINES_AFTER_A_STEP])}
    shapes = grouped((_NUMBER.sub("0", text), text) for _, text in tail)
    for shape, number in near_the_end.items():
        texts = {*shapes[shape]}
        is_work = _WORK.search(next(iter(texts))) is not None
        if len(texts) >= (2 if is_work else _LEAST_STEPS) and not (_OF_NCCL if is_work else _NO_STEP).search(shape):
            return number
    return None
