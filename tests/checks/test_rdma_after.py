"""The look at RDMA ports after the ranks: what counters grew by meanwhile, and what that means."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from ddp_doctor.checks.node.rdma.afterwards import CHECK, probe
from ddp_doctor.engine.collect import read_check
from ddp_doctor.model.choices import Severity, Status
from ddp_doctor.model.fact import Absent
from ddp_doctor.model.recording import Recording
from tests import rdma_trees as trees
from tests.checks.test_rdma import recording as before
from tests.fakes import FakeContext
from tests.rdma_trees import Tree
from tests.readings import finding_of, findings_of

RUN_S = 60.0


def recording(first: list[Tree], then: list[Tree], **more: Any) -> Recording:
    seen = before(*first, nccl=None, **more)
    later = [
        read_check(CHECK, FakeContext(files=tree.files, links=tree.links, node=at)) for at, tree in enumerate(then)
    ]
    moved = [reading.model_copy(update={"started_at": reading.started_at + RUN_S}) for reading in later]
    return seen.model_copy(update={"readings": (*seen.readings, *moved)})


findings = partial(findings_of, CHECK)
only = partial(finding_of, CHECK)


def grown(counters: Mapping[str, int], port: int = 3, nodes: int = 2, **more: Any) -> Recording:
    old = trees.infiniband(counters={port: dict.fromkeys(counters, 5)})
    new = trees.infiniband(counters={port: {name: 5 + by for name, by in counters.items()}})
    rest = [trees.infiniband() for _ in range(nodes - 1)]
    return recording([old, *rest], [new, *rest], **more)


def test_a_machine_without_rdma_is_absent():
    with pytest.raises(Absent):
        probe(FakeContext())


def test_states_and_counters_are_read_again_and_virtual_functions_left_out():
    fact = probe(trees.virtual_functions().context())

    (port,) = fact.ports
    assert (port.hca, port.number, port.state, port.counters["link_downed"]) == ("mlx5_0", 1, "ACTIVE", 1)


@pytest.mark.parametrize(
    ("nodes", "backend", "severity"), [(2, "nccl", "error"), (1, "nccl", "info"), (2, "gloo", "info")]
)
def test_a_link_that_went_down_and_came_back(nodes: int, backend: str, severity: str):
    finding = only(grown({"link_downed": 1}, nodes=nodes, backend=backend))

    assert (finding.code, finding.severity.value) == ("DD566", severity)
    assert "link_downed +1 in 60 s" in finding.evidence[0].text
    assert [one.name for one in finding.culprits] == ["mlx5_3"]


def test_a_link_that_did_not_come_back():
    machines = [trees.infiniband(), trees.infiniband()]

    finding = only(recording(machines, [trees.infiniband(down=[2]), trees.infiniband()]))

    assert (finding.code, finding.severity) == ("DD566", Severity.ERROR)
    assert "ACTIVE before, DOWN after" in finding.evidence[0].text


def test_an_ethernet_link_that_went_down_shows_by_its_interface():
    after = [trees.roce(0, carrier_changes={5: 4}), trees.roce(1)]

    finding = only(recording([trees.roce(0), trees.roce(1)], after))

    assert (finding.code, finding.title) == ("DD566", "mlx5_5 on node0: the RDMA link went down while the ranks ran")


def test_a_port_that_was_down_all_along_is_left_to_the_other_check():
    down = trees.infiniband(down=[2])

    assert findings(recording([down, down], [down, down])) == []


def test_packets_that_were_sent_again():
    finding = only(grown({"local_ack_timeout_err": 31, "out_of_sequence": 400}))

    assert (finding.code, finding.severity) == ("DD579", Severity.WARNING)
    assert "local_ack_timeout_err +31 in 60 s" in finding.evidence[0].text


@pytest.mark.parametrize("counters", [{"symbol_error": 100}, {"port_rcv_errors": 12}, {"link_error_recovery": 1}])
def test_errors_on_the_link(counters: dict[str, int]):
    finding = only(grown(counters))

    assert (finding.code, finding.severity) == ("DD580", Severity.WARNING)


def test_as_many_wrong_symbols_as_infiniband_allows():
    assert findings(grown({"symbol_error": 20})) == []  # 400 Gb/s for 60 s are 24 · 10^12 bits


def test_counters_that_somebody_cleared_are_not_compared():
    old = trees.infiniband(counters={3: {"link_downed": 400, "symbol_error": 9000}})

    assert findings(recording([old, old], [trees.infiniband(), trees.infiniband()])) == []


def test_a_second_look_that_failed_is_no_finding():
    seen = grown({"link_downed": 1})
    failed = tuple(
        one.model_copy(update={"status": Status.TIMED_OUT, "fact": None}) if one.check == "rdma_after" else one
        for one in seen.readings
    )

    assert findings(seen.model_copy(update={"readings": failed})) == []
