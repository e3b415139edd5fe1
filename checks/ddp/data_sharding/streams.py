"""Random numbers of this rank: after a seed that all ranks share, and after one of its own."""

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ddp_doctor.facts.ddp.data_sharding import Stream
from ddp_doctor.model.context import RankContext

COMMON_SEED = 20_201
_BELOW = 2**31
#: Two draws are equal by chance once in 2**62.
_DRAWS = 2
Draw = Callable[[int], tuple[int, ...]]


def streams(ctx: RankContext) -> tuple[Stream, ...]:
    """What each source draws; its state is put back."""
    return tuple(
        Stream(source=source, common=draw(COMMON_SEED), own=draw(COMMON_SEED + 1 + ctx.group_rank))
        for source, draw in sources(ctx.device)
    )


def sources(device: str) -> Iterator[tuple[str, Draw]]:
    """The sources of random numbers there are, and how one is seeded and drawn from."""
    yield "torch", lambda seed: _torch(seed, "cpu")
    if device != "cpu":
        yield "torch on the GPU", lambda seed: _torch(seed, device)
    yield "random", _random
    numpy = sys.modules.get("numpy")  # torch has imported it where there is one
    if numpy is not None:
        yield "numpy", lambda seed: _numpy(numpy, seed)


def start_up_files() -> tuple[str, ...]:
    """What Python itself imported at its start (module site), where its file is known."""
    modules = (sys.modules.get(name) for name in ("sitecustomize", "usercustomize"))
    files = (getattr(module, "__file__", None) for module in modules)
    return tuple(file for file in files if file)


def _torch(seed: int, device: str) -> tuple[int, ...]:
    import torch

    with torch.random.fork_rng(devices=[] if device == "cpu" else [device]):
        torch.manual_seed(seed)
        return tuple(torch.randint(_BELOW, (_DRAWS,), device=device).tolist())


def _random(seed: int) -> tuple[int, ...]:
    state = random.getstate()
    random.seed(seed)
    drawn = tuple(random.sample(range(_BELOW), _DRAWS))
    random.setstate(state)
    return drawn


def _numpy(numpy: Any, seed: int) -> tuple[int, ...]:
    state = numpy.random.get_state()
    numpy.random.seed(seed)
    drawn = tuple(int(one) for one in numpy.random.randint(_BELOW - 1, size=_DRAWS))
    numpy.random.set_state(state)
    return drawn
