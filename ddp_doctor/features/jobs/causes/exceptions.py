"""Exceptions of ranks: whether another process, a launcher or a library below Python code caused them."""

import re

from ddp_doctor.features.jobs.facts import SignSeen
from ddp_doctor.features.jobs.table.signs import CONFIGURATION_INVALID, FILE_NOT_ACCESSIBLE, LIBRARY_EXCEPTION
from ddp_doctor.knowledge.victims import blames_peer

#: Exceptions that a rank raises because another process failed, or because it was told to exit (torch 2.15
#: c10d/exception.h, distributed/elastic; Python's own for signals and closed pipes).
_OTHERS_FAULT = frozenset(
    """
    DistBackendError DistNetworkError DistStoreError ChildFailedError SignalException
    RendezvousConnectionError RendezvousTimeoutError RendezvousClosedError
    RendezvousGracefulExitError ProcessRaisedException ProcessExitedException CalledProcessError
    BrokenProcessPool RayActorError ActorDiedError WorkerCrashedError KeyboardInterrupt SystemExit
    GeneratorExit BrokenPipeError ConnectionResetError ConnectionAbortedError ConnectionRefusedError
    EOFError WorkerGroupError TrainingFailedError
    """.split()  # noqa: SIM905  a list of words
)
#: Messages of mp.spawn, before torch 1.7 in a plain Exception (torch/multiprocessing/spawn.py), and of a client of the
#: store (torch 1.9 to 1.11).
_OF_SPAWN = re.compile(r"process \d+ terminated with (?:exit code|signal) |connect\(\) timed out\. Original timeout")
#: Messages of drivers and of communication libraries, and the files of such libraries.
_OF_LIBRARIES = re.compile(
    r"\b(?:CUDA|HIP|HAS|ROCm) (?:driver )?(?:error|failure)|cuda(?:Error|Runtime)|CUDA_ERROR_|\bNCCL\b|NVSHMEM|IBGDA"
    r"|DeepEP|symmetric memory|multicast|\bfabric\b|\bibv_|libfabric|\bUCX?\b|\bIPC\b|\btime(?:d )?.?out\b|\bpeer\b",
    re.IGNORECASE,
)
_LIBRARIES = re.compile(
    r"/(?:deep_ep|nvshmem\w*|cupy|_symmetric_memory|symm_mem\w*|transformer_engine|nccl\w*)(?:/|\.py)"
    r"|[/\\]torch[/\\](?:distributed|cuda)[/\\]"
)
#: Types of exceptions that Python code raises about its own values.
_ABOUT_VALUES = frozenset(
    """
    ValueError TypeError KeyError IndexError AttributeError AssertionError NameError ZeroDivisionError ImportError
    ModuleNotFoundError FileNotFoundError UnboundLocalError NotImplementedError SyntaxError JSONDecodeError
    """.split()  # noqa: SIM905  a list of words
)
#: Errors about a path: it does not exist, may not be used, is not a directory, or is one.
_OF_A_PATH = re.compile(r"\[Errno (?:2|13|20|21|30)\]")
#: Exception types of configuration parsers, and words in the frames that parse a configuration as JSON.
_PARSES_CONFIGURATION = ("yaml.", "omegaconf.", "hydra.", "toml")
_READS_CONFIGURATION = re.compile(r"config|cfg|\bargs\b|hparams|settings", re.IGNORECASE)
#: The last frame of a launcher that reports the failure of a process that it started.
_TELLS_OF_A_CHILD = re.compile(
    r"[/\\]torch[/\\](?:distributed[/\\]launcher[/\\]api\.py:\d+ in launch_agent"
    r"|multiprocessing[/\\]spawn\.py:\d+ in join)$"
)
#: The first frame of a launcher that stops before it starts a rank.
_LAUNCHER = re.compile(r"[/\\](?:torchrun|accelerate|deepspeed|horovodrun|colossalai):\d+ in <module>")
_PARSES_ARGUMENTS = re.compile(
    r"[/\\]accelerate[/\\]commands[/\\]|[/\\]torch[/\\]distributed[/\\]run\.py:|[/\\]launcher[/\\]|argparse\.py:"
)


def is_own(exception: SignSeen) -> bool:
    """Return True unless another process caused the exception."""
    kind, message = exception.values.get("type", "").rpartition(".")[2], exception.values.get("message", "")
    is_others = kind in _OTHERS_FAULT or is_of_launcher(exception) or _OF_SPAWN.match(message) or blames_peer(message)
    return bool(kind) and not is_others


def is_of_launcher(exception: SignSeen) -> bool:
    """Return True if a launcher, not a rank, raised the exception because a rank failed."""
    is_summary = exception.values.get("type", "").endswith("ChildFailedError")
    return is_summary or _TELLS_OF_A_CHILD.search(exception.values.get("frames", "")) is not None


def cause_of(exception: SignSeen) -> tuple[str, ...]:
    """Return the name of the cause, and the values that equal exceptions share.

    A library is the cause if the message or the last frame is a library's, unless the type is about values.
    """
    frames = exception.values.get("frames", "").split("\n")
    is_of_library = _OF_LIBRARIES.search(exception.values.get("message", "")) or _LIBRARIES.search(frames[-1])
    kind = exception.values.get("type", "").rpartition(".")[2]
    if kind == "ValueError" and _LAUNCHER.search(frames[0]) and _PARSES_ARGUMENTS.search(frames[-1]):
        return ("script-arguments", *_alike(exception)[:2])
    if reads_configuration(exception):
        return (CONFIGURATION_INVALID, *_alike(exception))
    if _OF_A_PATH.match(exception.values.get("message", "")):
        return (FILE_NOT_ACCESSIBLE, *_alike(exception))
    if is_of_library and kind not in _ABOUT_VALUES:
        return (LIBRARY_EXCEPTION, *_alike(exception)[:2])
    return ("rank-exception", *_alike(exception))


def reads_configuration(exception: SignSeen) -> bool:
    """Return True if a parser rejected the text of a configuration, not of data."""
    kind = exception.values.get("type", "")
    is_json = kind.endswith("JSONDecodeError")
    return kind.startswith(_PARSES_CONFIGURATION) or (
        is_json and _READS_CONFIGURATION.search(exception.values.get("reader", "")) is not None
    )


def _alike(exception: SignSeen) -> tuple[str, ...]:
    values = exception.values
    words = re.sub(r"0x[0-9a-f]+|\d+", "0", values.get("message", ""))
    return (values.get("type", ""), words, values.get("where", ""))
