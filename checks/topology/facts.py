"""One host's matrix of paths, as the probe writes it and the rules read it."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge import link_codes as codes
from ddp_doctor.model.fact import Fact
from ddp_doctor.parse.nccl_log import NcclTransportFact
from ddp_doctor.parse.topo_matrix import TopologyMatrix


class TopologyFact(TopologyMatrix, Fact):
    """One host's matrix, and what decides with it how far NCCL's P2P reaches.

    ``cpu_vendor`` is as /proc/cpuinfo says ("AuthenticAMD", "GenuineIntel", "ARM"), None where unknown;
    ``nccl_settings`` are the variables about P2P and HCAs that the job will inherit.
    """

    KIND: ClassVar[str] = "topology/1"

    cpu_vendor: str | None = None
    nccl_settings: dict[str, str] = Field(default_factory=dict)

    def p2p_limit(self, log: NcclTransportFact) -> tuple[str, str]:
        """How far NCCL lets GPUs talk directly here, and what says so."""
        level = log.p2p_level or self.nccl_settings.get("NCCL_P2P_LEVEL")
        return codes.p2p_limit(len(self.gpus), self.cpu_vendor, level)
