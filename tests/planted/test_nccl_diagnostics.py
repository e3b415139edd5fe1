"""NCCL's own diagnostics on simulated GPUs: ddp-doctor reads what the real library prints.

No data moves between simulated GPUs, so NCCL reports each direct path as faulty: this is due to the simulation.
"""

from __future__ import annotations

import pytest

from ddp_doctor.checks.collectives.nccl_diagnostics import CHECK
from ddp_doctor.parse.nccl_diagnostics import parse_nccl_diagnostics, still_printing
from tests.machines import servers
from tests.planted.test_nccl import nccl
from tests.planted.world import Machines

pytestmark = [pytest.mark.planted, pytest.mark.timeout(600)]

#: The subjects that each release reports on two hosts; 2.32.3 reports all that it checks.
SUBJECTS = {
    "2.27.5": set[str](),
    "2.32.3": {
        *("ATS state", "CUDA driver version", "ECC", "GPU inventory", "IOMMU mode", "NCCL environment"),
        *("NVIDIA graphics driver version", "Paths", "Xid/SXid", "net bw", "p2p", "rdma_topo check"),
    },
}


@pytest.mark.parametrize("release", SUBJECTS)
def test_only_releases_with_diagnostics_report_each_path_on_both_hosts(release: str):
    library = nccl(release)
    with Machines([servers.dgx_h100(node) for node in range(2)]) as planted:
        ran = planted.run(library, 4, env=CHECK.environment)

    assert set(ran.codes) == {0}
    results = parse_nccl_diagnostics("\n".join(ran.said))
    assert {result.text.partition(":")[0] for result in results} == SUBJECTS[release]
    named = {(result.ranks, result.path) for result in results if result.ranks}
    paths = [(0, 1), (1, 0), (2, 3), (3, 2)] if results else []
    assert named == {(pair, "NVL") for pair in paths}
    assert not any(still_printing(text) for text in ran.said)
