"""Which of NCCL's files a node reads, and of which nodes the rules on NCCL's files speak."""

from ddp_doctor.facts.nccl import ConfFile, NcclFact
from ddp_doctor.facts.software import Software
from ddp_doctor.knowledge.nccl_plugins import CONF_FILE_SINCE, HOME_SINCE
from ddp_doctor.knowledge.versions import release
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.views.software import with_gpus


def files_read(recording: Recording, seen: FactAt[NcclFact]) -> tuple[ConfFile, ...]:
    """The files that the NCCL of this node reads: which one is ~'s depends on its version."""
    version = next((one.nccl_loaded for one in recording.at(Software, seen.node)), None)
    number = release(version or "")
    ignored = {"home" if number and number < HOME_SINCE else "passwd"}
    if number and number < CONF_FILE_SINCE:
        ignored.add("named")
    return tuple(one for one in seen.fact.conf if one.reason not in ignored)


def of_gpu_nodes(recording: Recording) -> list[FactAt[NcclFact]]:
    """The nodes whose job uses NCCL. A prolog does not know the job's LD_LIBRARY_PATH."""
    nodes = {seen.node for seen in with_gpus(recording)}
    return [seen for seen in recording.facts(NcclFact) if seen.node in nodes]
