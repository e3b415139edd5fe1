"""The other nodes of a run, behind the ``NodesContext`` that probes between nodes get."""

from collections.abc import Mapping

from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import Line, Peer
from ddp_doctor.model.recording import World
from ddp_doctor.sources import sockets
from ddp_doctor.sources.machine import LiveContext


class LiveNodesContext(LiveContext):
    """One node's view of its machine and of its peers; ``secret`` is what their listeners know it by."""

    def __init__(
        self,
        env: Mapping[str, str],
        deadline: float,
        *,
        node: int,
        world: World,
        level: Level,
        peers: tuple[Peer, ...],
        secret: str,
        clock_offset_s: float | None,
    ) -> None:
        super().__init__(env, deadline, node=node, world=world, level=level)
        self.peers = peers
        self.nproc = len(world.ranks_of(node))
        self.clock_offset_s = clock_offset_s
        self._secret = secret

    def dial(self, address: str, port: int, timeout_s: float) -> Line:
        """Connect to a peer's listener and be recognised by it."""
        return sockets.dial(address, port, self._secret, timeout_s)
