"""Of which nodes the rules on NCCL's files speak."""

from ddp_doctor.facts.nccl import NcclFact
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.views.software import with_gpus


def of_gpu_nodes(recording: Recording) -> list[FactAt[NcclFact]]:
    """The nodes whose job uses NCCL. A prolog does not know the job's LD_LIBRARY_PATH."""
    nodes = {seen.node for seen in with_gpus(recording)}
    return [seen for seen in recording.facts(NcclFact) if seen.node in nodes]
