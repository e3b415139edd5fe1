"""What a variable's value costs or risks although it does what it says.

    NCCL_P2P_DISABLE=1                slows: GPUs of one host exchange data through host memory
    NCCL_PROTO=LL128                  unsafe: forced where NCCL would not choose it, it can corrupt data
    NCCL_DEBUG=TRACE                  debug: a line for each call

The conditions stand in the table of variables. A value that is misread (knowledge/values.py) is judged as the
library reads it: NCCL_P2P_DISABLE=true is 0, and slows nothing.
"""

from ddp_doctor.knowledge.values import LEVELS, strtoll
from ddp_doctor.knowledge.variables import Concern, Variable, variables

_NUMBERS = ("bool", "int", "size")
_TRUE, _FALSE = {"1", "true", "yes", "t", "y"}, {"0", "false", "no", "f", "n"}


def concerns(name: str, value: str) -> tuple[Concern, ...]:
    """The concerns about a value of a variable in the table; none for an empty value or an unknown name."""
    variable = variables().get(name)
    if variable is None or not value:
        return ()
    return tuple(concern for concern in variable.concerns if _holds(concern, variable, value))


def in_words(concern: Concern) -> str:
    """The values that a concern is about: "0", "LOC or 0", "below 4", "any value"."""
    listed = " or ".join(concern.operands)
    words = {"any": "any value", "is": listed, "not": f"all but {listed}", "below": f"below {listed}"}
    words |= {
        "above": f"above {listed}",
        "has": f"a list with {listed}",
        "allows": f"a list that keeps {listed}",
    }
    return words[concern.test]


def _holds(concern: Concern, variable: Variable, value: str) -> bool:
    if concern.test == "any":
        return True
    if concern.test in ("has", "allows"):
        return _asks_for(value, concern.operands, concern.test == "allows")
    read = _as_read(variable, value)
    if concern.test in ("is", "not"):
        return (read in [operand.upper() for operand in concern.operands]) == (concern.test == "is")
    number, _ = strtoll(read)
    if number is None:
        return False
    limit = int(concern.operands[0])
    return 0 <= number < limit if concern.test == "below" else number > limit  # negative: NCCL's choice


def _as_read(variable: Variable, value: str) -> str:
    """The value as its reader takes it: a number in decimal, a boolean as 1 or 0, else in capitals."""
    number, _ = strtoll(value)
    if variable.type in _NUMBERS:
        return str(number or 0)
    if variable.type == "level":
        return value if value in LEVELS or number is None else str(number)
    word = value.strip().lower()
    if variable.type == "strict_bool":
        return "1" if word in _TRUE else "0" if word in _FALSE else word
    return word.upper()


def _asks_for(value: str, words: tuple[str, ...], or_keeps: bool) -> bool:
    """Whether a list such as ``^LL;AllReduce:Tree,Ring`` names one of the words.

    A list that begins with ^ names what it excludes; ``or_keeps`` says whether what it keeps counts.
    """
    sought = {word.upper() for word in words}
    for part in value.split(";"):
        names = part.rpartition(":")[2].strip().upper()
        excludes = names.startswith("^")
        named = {name.strip() for name in names.removeprefix("^").split(",")}
        if (or_keeps and not sought <= named) if excludes else sought & named:
            return True
    return False
