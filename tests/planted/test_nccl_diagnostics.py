"""NCCL's own diagnostics on planted GPUs: what the real library prints is what the doctor reads.

No data moves between planted GPUs, so NCCL finds each direct path at fault: that is of the planted machine.
"""

from __future__ import annotations

import pytest

from ddp_doctor.checks.collectives.nccl_diagnostics import CHECK
from ddp_doctor.parse.nccl_diagnostics import parse_nccl_diagnostics, still_printing
from tests.machines import servers
from tests.planted.test_nccl import nccl
from tests.planted.world import Machines

pytestmark = [pytest.mark.planted, pytest.mark.timeout(600)]

#: What each release tells of on two hosts: in 2.32.3 of all that it looks at.
SUBJECTS = {
    "2.27.5": set[str](),
    "2.32.3": {
        *("ATS state", "CUDA driver version", "ECC", "GPU inventory", "IOMMU mode", "NCCL environment"),
        *("NVIDIA graphics driver version", "Paths", "Xid/SXid", "net bw", "p2p", "rdma_topo check"),
    },
}


@pytest.mark.parametrize("release", SUBJECTS)
def test_the_release_that_has_diagnostics_names_each_path_on_both_hosts_and_one_before_it_none(release: str):
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
