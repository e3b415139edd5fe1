"""Settings that may make ranks fail or die: the candidates, the trials without them, and what these proved.

A message that names a setting, or its value, points at it. A crash names none, so each setting that the library reads
is unset in turn. A setting is the cause only if the ranks passed without it and failed again with it.
"""

import re
from collections.abc import Iterator, Sequence

from ddp_doctor.engine.prove.proofs import proof_of
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.model.check import PROCESS_GROUP
from ddp_doctor.model.finding import Remedy, Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import Step, TrialRecord
from ddp_doctor.remedies.kinds import NO_TRIAL, unset
from ddp_doctor.settings.table import variables
from ddp_doctor.settings.trials import LARGEST_BYTES, read_by
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.reproducers import EXCHANGED_BYTES
from ddp_doctor.views.settings_read import installed, misread_values
from ddp_doctor.wording.ranks import cause

#: Maximum number of settings to try: each trial of a crash takes some seconds.
_MOST_TRIED = 4
#: Minimum length of a value to search for: a number or a shorter word may occur in a text by chance.
_LEAST_VALUE = 3
#: Messages of a process group that fails, and the variables that they are about, most likely first. Seen with NCCL 2.21
#: to 2.32 and each variable set to an invalid value (gloo transport/tcp/device.cc; NCCL src/bootstrap.cc,
#: plugin/net.cc, graph/tuning.cc, graph/xml.cc, enqueue.cc, init.cc, misc/ibvwrap.cc).
_SPEAKS_OF: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
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
#: Log settings: NCCL's advice mentions them, and they do not change what ranks do.
_OF_LOGS = ("NCCL_DEBUG", "NCCL_WARN", "NCCL_LOG", "TORCH_CPP_LOG", "GLOO_LOG", "TORCH_FR", "TORCH_NCCL_DUMP")
_SHAPE = re.compile(r"(?P<type>[a-z]+)(?P<bits>\d+) \[(?P<elements>\d+)\]")


def in_force(recording: Recording, of_node: int | None = None) -> dict[str, str]:
    """Return the variables set on this node, or on any node, with the value of the first node that has them."""
    found: dict[str, str] = {}
    for node in recording.facts(EnvVars):
        for name, value in node.fact.variables.items():
            if of_node in (None, node.node) and not name.startswith(_OF_LOGS):
                found.setdefault(name, value)
    return found


#: Networks that NCCL has without a plug-in (NCCL src/plugin/net.cc).
_BUILT_IN = frozenset({"IB", "SOCKET"})


def spoken_of(recording: Recording, message: str, node: int) -> tuple[str, ...]:
    """Return the settings in force on the node that the message is about: by its phrases, by a name, or by a value."""
    values = in_force(recording, node)
    reason = cause(message)
    by_words = [name for words, names in _SPEAKS_OF if words.search(message) for name in names]
    by_name = [name for name in values if re.search(rf"\b{re.escape(name)}\b", reason)]
    by_value = [name for name, value in values.items() if name in variables() and _holds(reason, value)]
    found = [name for name in dict.fromkeys((*by_name, *by_words, *by_value)) if name in values]
    found.sort(key=lambda name: name == "NCCL_NET" and values[name].upper() in _BUILT_IN)  # it has these everywhere
    named = [name for name in found if name in by_name or name in by_value]
    return tuple(named or found)  # prefer settings whose name or value the message repeats


def _holds(text: str, value: str) -> bool:
    if len(value) < _LEAST_VALUE or not re.search("[A-Za-z]", value):
        return False
    return re.search(rf"(?<![\w./-]){re.escape(value)}(?![\w/-])", text) is not None


def read_by_library(recording: Recording, backend: str) -> tuple[str, ...]:
    """Return the settings in force that this backend reads, misread values first."""
    misread = {
        value.variable.name
        for node in recording.facts(EnvVars)
        for value in misread_values(node.fact.variables, installed(recording)[node.node])
    }
    names = [name for name in in_force(recording) if read_by(name, "unset") == backend]
    return tuple(sorted(names, key=lambda name: (name not in misread, name)))[:_MOST_TRIED]


def without(recording: Recording, names: Sequence[str]) -> Iterator[Remedy]:
    """Yield a fix for each of these variables that unsets it, for a trial."""
    values = in_force(recording)
    for name in names:
        yield unset({name: values[name]}, "the library then decides itself", proof=NO_TRIAL)


def proved_settings(recording: Recording, code: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the settings that are the cause: ranks passed with only this setting unset and failed again with it."""
    return tuple(name for name in names if outcome_without(recording, code, name) == "proved")


def outcome_without(recording: Recording, code: str, name: str) -> str | None:
    """Return what trials with only this variable unset proved, or None if there were none."""
    for experiment in recording.experiments:
        if experiment.code == code and [setting.name for setting in experiment.settings] == [name]:
            return proof_of(experiment).status
    return None


def with_values(recording: Recording, names: Sequence[str], node: int | None = None) -> str:
    """Return `` with NCCL_NET=IB``, with the value of this node or the first one; empty for no names."""
    values = in_force(recording, node)
    return f" with {' and '.join(shown(name, values[name]) for name in names)}" if names else ""


def repeating(trial: TrialRecord, step: Step | None) -> Reproducer:
    """Return the smallest test that does what the ranks did: connect, and reduce as many bytes as this step."""
    ranks = trial.ranks
    if step is None or step.check == PROCESS_GROUP:
        return Reproducer(kind="meet", ranks=ranks)
    shape = _SHAPE.match(step.detail)
    size = int(shape["bits"]) // 8 * int(shape["elements"]) if shape else EXCHANGED_BYTES
    return Reproducer(kind="meet", ranks=ranks, size_bytes=min(max(size, 4), LARGEST_BYTES))
