"""What a variable's value costs or risks although it does what it says, and whether the conditions of a row hold.

NCCL_P2P_DISABLE=1                slows: GPUs of one host exchange data through host memory
NCCL_PROTO=LL128                  unsafe: forced where NCCL would not choose it, it can corrupt data
NCCL_DEBUG=TRACE                  debug: a line for each call
"""

from collections.abc import Mapping

from ddp_doctor.settings.conditions import Condition, When, asks_for, strtoll
from ddp_doctor.settings.table import Effect, Variable, variables
from ddp_doctor.settings.values import FALSE, LEVELS, TRUE

Env = Mapping[str, str]

_NUMBERS = ("bool", "int", "size")


def effects(name: str, value: str) -> tuple[Effect, ...]:
    """The effects of a value of a variable in the table; none for an empty value or an unknown name."""
    variable = variables().get(name)
    if variable is None or not value:
        return ()
    return tuple(effect for effect in variable.effects if holds(effect.when, {name: value}))


def number(env: Env, name: str) -> int | None:
    """The number that NCCL reads; None where the variable is unset or empty."""
    value = env.get(name, "")
    return None if not value.strip() else strtoll(value)[0] or 0


def holds(when: When, env: Env) -> bool:
    """Whether all conditions hold in an environment."""
    return all(_holds(name, condition, env) for name, condition in when)


def _holds(name: str, condition: Condition, env: Env) -> bool:
    value, operands = env.get(name, ""), condition.operands
    if not value.strip():
        return "unset" in operands
    if condition.test == "any":
        return True
    if condition.test in ("has", "allows"):
        return asks_for(value, operands, or_keeps=condition.test == "allows")
    read = _as_read(variables()[name], value)
    if condition.test in ("is", "not"):
        return (read in [operand.upper() for operand in operands]) == (condition.test == "is")
    found, _ = strtoll(read)
    limit = int(operands[0]) if operands[0].isdecimal() else number(env, operands[0])
    if found is None or limit is None:
        return False
    return 0 <= found < limit if condition.test == "below" else found > limit


def _as_read(variable: Variable, value: str) -> str:
    """The value as its reader takes it: a number in decimal, a boolean as 1 or 0, else in capitals."""
    read, _ = strtoll(value)
    if variable.type in _NUMBERS:
        return str(read or 0)
    if variable.type == "level":
        return value if value in LEVELS or read is None else str(read)
    word = value.strip().lower()
    if variable.type == "strict_bool":
        return "1" if word in TRUE else "0" if word in FALSE else word
    return word.upper()
