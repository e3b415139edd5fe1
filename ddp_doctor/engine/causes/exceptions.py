"""Exceptions of ranks: which of them blame somebody else, which speak of a machine, and which are the same."""

import re

from ddp_doctor.facts.job_log import SignSeen
from ddp_doctor.knowledge.victims import blames_peer

#: Exceptions in which a rank says that somebody else failed, or that it was told to end (torch 2.15
#: c10d/exception.h, distributed/elastic; Python's own for signals and for ends of pipes).
_OTHERS_FAULT = {
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "ChildFailedError",
    "SignalException",
    "RendezvousConnectionError",
    "RendezvousTimeoutError",
    "RendezvousClosedError",
    "RendezvousGracefulExitError",
    "ProcessRaisedException",
    "ProcessExitedException",
    "CalledProcessError",
    "BrokenProcessPool",
    "RayActorError",
    "ActorDiedError",
    "WorkerCrashedError",
    "KeyboardInterrupt",
    "SystemExit",
    "GeneratorExit",
    "BrokenPipeError",
    "ConnectionResetError",
    "ConnectionAbortedError",
    "ConnectionRefusedError",
    "EOFError",
}
#: Words of exceptions that a fault of a machine brings.
_MACHINE = re.compile(
    r"CUDA|NCCL|cuDNN|cuBLAS|GPU|device|memory|killed|signal|Accelerator|bus error|gloo|OSError", re.IGNORECASE
)
#: How an exception of a DataLoader's worker begins in the rank.
_IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process")


def is_own(exception: SignSeen) -> bool:
    """Whether an exception is of the rank itself, and no answer to what another process did."""
    kind = exception.values.get("type", "").rpartition(".")[2]
    return bool(kind) and kind not in _OTHERS_FAULT and not blames_peer(exception.values.get("message", ""))


def speaks_of_a_machine(exception: SignSeen) -> bool:
    """Whether an exception may follow from a fault of a GPU, a host or NCCL, as no ValueError of a job does."""
    return bool(_MACHINE.search(f"{exception.values.get('type', '')} {exception.values.get('message', '')}"))


def alike(exception: SignSeen) -> tuple[str, ...]:
    """Equal for the same exception on several ranks: its type, its words without numbers, its line of code."""
    values = exception.values
    words = re.sub(r"0x[0-9a-f]+|\d+", "0", values.get("message", ""))
    return (values.get("type", ""), words, values.get("where", ""))


def is_of_worker(exception: SignSeen) -> bool:
    """Whether a rank raises again what a worker of its DataLoader raised."""
    return _IN_WORKER.match(exception.values.get("message", "")) is not None
