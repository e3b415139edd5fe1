"""Numbers of training steps in a job's output.

step 400, loss 2.31              {"global_step": 400, "loss": 2.31}        Epoch 3, batch 12/938
 12%|█▏        | 120/1000 [00:10<01:13, 12.0it/s]                          tqdm's bar
"""

import re

_STEP = re.compile(
    r"\b(?P<name>(?:global_|train_)?(?:step|iter|iteration|batch|it))\b[^\w\r\n]{0,4}(?P<number>\d{1,12})\b"
    r"|\| {0,12}(?P<of_bar>\d{1,12})/\d{1,12} \[",
    re.IGNORECASE,
)
#: A line that counts the steps of something else.
_OTHER = re.compile(r"\b(?:val\b|valid|eval|test)", re.IGNORECASE)
_LINE = re.compile(r"[^\r\n]+")


def numbers_of_steps(text: str) -> list[tuple[str, int]]:
    """Return the name and the number of the step in each line that has one, in order. A bar has no name."""
    lines = (line[0] for line in _LINE.finditer(text))
    found = (_STEP.search(line) for line in lines if not _OTHER.search(line))
    return [((step["name"] or "").lower(), int(step["number"] or step["of_bar"])) for step in found if step]
