"""What torch, NCCL, gloo, CUDA and the kernel say when a job fails: what it means, and which rules look for the cause.

A row has the words that stay the same; what a program puts between them (ranks, addresses, times) is left out. Only
texts whose cause a rule or a setting is about are here. Texts that name a cause of failed jobs are its signs
(knowledge/job_causes), and not here again.
"""

import re
from typing import NamedTuple


class ErrorText(NamedTuple):
    """A text, and what is behind it."""

    words: str
    means: str  # one sentence
    codes: tuple[str, ...]  # of rules that find a cause, the likeliest first
    source: str  # what prints it
    settings: tuple[str, ...] = ()


#: What a process group says that fails, and the variables that it speaks of, the likeliest first. Seen with NCCL 2.21
#: to 2.32 and each of them set to what cannot be (gloo transport/tcp/device.cc; NCCL src/bootstrap.cc, plugin/net.cc,
#: graph/tuning.cc, graph/xml.cc, enqueue.cc, init.cc, misc/ibvwrap.cc).
SPEAKS_OF: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile("find address for"), ("GLOO_SOCKET_IFNAME",)),
    (re.compile("no socket interface found"), ("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY")),
    (
        re.compile(r"Failed to initialize any NET plugin|network \S{1,80} not found|Could not find NET with id"),
        ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_TOPO_FILE"),
    ),
    (
        re.compile("Unrecognized (?:element|prefix) token|no algorithm/protocol", re.IGNORECASE),
        ("NCCL_ALGO", "NCCL_PROTO"),
    ),
    (re.compile(r"\bXML\b"), ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")),
    (
        re.compile("communicator before the previous operation returned"),
        ("NCCL_COMM_BLOCKING", "TORCH_NCCL_USE_COMM_NONBLOCKING"),
    ),
    (re.compile("ibv_modify_qp failed"), ("NCCL_IB_GID_INDEX", "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY")),
)

_WAITED = "This rank waited in vain: look for the rank that never came, not for the one that printed this."
_LEFT = "The other end of a connection is gone: look for the rank that failed first."
_HIDDEN = "NCCL hides the cause: its own log has it."
_NCCL_RESULT = "torch 2.15 c10d/NCCLUtils.cpp, NCCL 2.30.7 src/init.cc (ncclGetErrorString)"
_HANGS = ("DD610", "DD611", "DD615", "DD616", "DD619", "DDL133", "DDL134")

ERROR_TEXTS = (
    ErrorText(
        "Watchdog caught collective operation timeout",
        _WAITED,
        _HANGS,
        "torch 2.15 c10d/ProcessGroupNCCL.cpp",
        ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ),
    ErrorText("NCCL operation timed out", _WAITED, _HANGS, "torch 2.15 c10d/nccl2", ("TORCH_FR_BUFFER_SIZE",)),
    ErrorText("Timed out waiting for recv operation to complete", _WAITED, _HANGS, "gloo transport/tcp"),
    ErrorText(
        "Connection closed by peer. This is typically caused by a remote worker crashing",
        _LEFT,
        ("DD612", "DD613", "DD540"),
        "gloo transport/tcp/pair.cc",
    ),
    ErrorText("Connection reset by peer", _LEFT, ("DD612", "DD613", "DD540"), "errno ECONNRESET"),
    ErrorText("Broken pipe", _LEFT, ("DD612", "DD613", "DD540"), "errno EPIPE"),
    ErrorText(
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely",
        _LEFT,
        ("DD612", "DD613", "DD566"),
        "torch 2.15 c10d/NCCLUtils.cpp",
    ),
    ErrorText(
        "NCCL error unhandled cuda error", _HIDDEN, ("DD446", "DD306", "DD304", "DD330"), _NCCL_RESULT, ("NCCL_DEBUG",)
    ),
    ErrorText("ncclUnhandledCudaError", _HIDDEN, ("DD446", "DD306", "DD304"), _NCCL_RESULT, ("NCCL_DEBUG",)),
    ErrorText(
        "NCCL error unhandled system error",
        _HIDDEN,
        ("DD521", "DD237", "DD238", "DD531"),
        _NCCL_RESULT,
        ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME"),
    ),
    ErrorText(
        "ncclSystemError",
        _HIDDEN,
        ("DD521", "DD237", "DD238", "DD531"),
        _NCCL_RESULT,
        ("NCCL_DEBUG", "NCCL_SOCKET_IFNAME"),
    ),
    ErrorText("NCCL error invalid usage", _HIDDEN, ("DD605", "DDL104", "DDL106"), _NCCL_RESULT, ("NCCL_DEBUG",)),
    ErrorText(
        "Signal 9 (SIGKILL) received by PID exitcode -9",
        "The kernel (out of memory), the scheduler or a person killed the rank.",
        ("DD612", "DD225"),
        "torch 2.15 distributed/elastic/multiprocessing/api.py",
    ),
    ErrorText(
        "The client socket has timed out while trying to connect",
        "Nothing answers at the endpoint: a firewall, the wrong address, or a head that never started.",
        ("DD512", "DD513", "DD530", "DD531"),
        "torch 2.15 c10d/socket.cpp",
    ),
    ErrorText(
        "Connection refused",
        "The host is there, and nobody listens on the port.",
        ("DD511", "DD519", "DD520"),
        "errno ECONNREFUSED",
    ),
    ErrorText(
        "No route to host",
        "There is no way to the address, or a firewall says so.",
        ("DD513", "DD531", "DD522"),
        "errno EHOSTUNREACH",
    ),
    ErrorText(
        "Timed out waiting for clients joined",
        "Not all nodes or ranks came to the rendezvous.",
        ("DD516", "DD501", "DD518"),
        "torch 2.15 c10d/TCPStore.cpp",
    ),
    ErrorText(
        "RendezvousTimeoutError",
        "Not all nodes came to the rendezvous of torchrun.",
        ("DD516", "DD501", "DD518"),
        "torch 2.15 distributed/elastic/rendezvous/api.py",
    ),
)
