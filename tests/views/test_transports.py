"""The expected transports between GPUs compared with NCCL's log, on recorded machines and variants of them."""

from functools import partial
from typing import Any

import pytest

from ddp_doctor.checks.node.topology import CHECK
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.render.topology.report import network_table, transport_table
from ddp_doctor.views.network import to_network
from ddp_doctor.views.transports import places
from tests import recordings
from tests.machines import servers
from tests.machines.whole import record
from tests.readings import findings_of


def load(name: str) -> Recording:
    return recordings.load(f"topology/transports-{name}")


judge = partial(findings_of, CHECK)


def with_log(recording: Recording, change: Any) -> Recording:
    (trial,) = recording.trials
    evidence = tuple(one.model_copy(update={"output_tail": change(one.output_tail)}) for one in trial.evidence)
    return recording.model_copy(update={"trials": (trial.model_copy(update={"evidence": evidence}),)})


def with_fact(recording: Recording, check: str, **changes: Any) -> Recording:
    readings = tuple(
        one.model_copy(update={"fact": {**(one.fact or {}), **changes}}) if one.check == check else one
        for one in recording.readings
    )
    return recording.model_copy(update={"readings": readings})


def test_unused_nvlink_is_explained_if_nccl_sees_two_hosts():
    recording = with_log(load("nvlink-over-shared-memory"), lambda log: log.replace("nNodes 1", "nNodes 2"))
    (finding,) = judge(recording)
    assert "sees the ranks as 2 hosts, but the run has 1" in finding.detail
    assert finding.confidence.value == "likely"


def test_p2p_has_no_finding_if_the_driver_was_not_asked():
    assert judge(with_fact(load("pcie-neighbours-over-shared-memory"), "topology", p2p={})) == []


def test_log_of_another_communicator_has_no_finding():
    log = "comm 0x55b6aa64a000 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x5 - Init START\n"
    assert judge(with_log(load("nvlink-over-shared-memory"), lambda said: log + said)) == []


def test_log_whose_ranks_have_no_known_gpu_has_no_finding():
    recording = load("nvlink-over-shared-memory")
    for number in range(8):
        recording = with_log(recording, lambda log, at=number: log.replace(f"[{at}]", f"[{at}b000]"))
    assert judge(recording) == []


def test_forbidden_p2p_that_is_not_slower_for_nccl_is_info():
    recording = with_fact(load("two-sockets-as-by-default"), "env_vars", variables={"NCCL_P2P_DISABLE": "1"})
    (finding,) = judge(recording.model_copy(update={"trials": ()}))
    assert (finding.code, finding.severity.value) == ("DD434", "info")


def test_table_shows_transport_rate_and_reason():
    (place,) = places(load("two-sockets-as-by-default"))
    lines = transport_table(place).splitlines()[2:]
    assert lines == [
        " PIX   GPU0-GPU1, GPU2-GPU3  P2P  24 GB/s  P2P goes up to PXB (NCCL's own limit)",
        " SYS   4 pairs of GPUs       SHM  22 GB/s  P2P goes up to PXB (NCCL's own limit)",
    ]


def test_table_of_one_gpu_is_empty():
    data = load("amd-pair-across-sockets").model_dump(mode="json")
    for reading in data["readings"]:
        if reading["check"] == "topology":
            reading["fact"] |= {"gpus": ["GPU0"], "links": {"GPU0": {}}}
    (place,) = places(Recording.model_validate(data))
    assert transport_table(place) == ""


# --- between nodes -------------------------------------------------------------------------------


def codes_of(recording: Recording) -> list[str]:
    return [finding.code for finding in judge(recording)]


def test_sockets_next_to_rdma_are_explained_by_the_reason_in_the_log():
    reason = "Failed to open libibverbs.so[.1]"
    silent = with_log(load("sockets-beside-infiniband"), lambda log: log.replace("NET/IB : No device found.", reason))
    assert "could not open libibverbs" in judge(silent)[0].detail


def test_explained_sockets_are_not_a_difference():
    recording = load("sockets-beside-infiniband")
    assert codes_of(with_fact(recording, "rdma", verbs_library=None)) == []
    assert codes_of(with_fact(recording, "rdma", settings={"NCCL_IB_HCA": "mlx5_9"})) == []
    by_nccl_conf = with_log(recording, lambda log: log + "\nNCCL_IB_DISABLE set by environment to 1.")
    assert codes_of(by_nccl_conf) == []
    readings = tuple(one for one in recording.readings if (one.check, one.node) != ("rdma", 1))
    assert codes_of(recording.model_copy(update={"readings": readings})) == []


def test_disabled_roce_is_info_and_no_finding_on_one_node():
    recording = load("infiniband-disabled")
    data = recording.model_dump(mode="json")
    for reading in data["readings"]:
        for hca in reading["fact"].get("hcas", ()):
            hca["ports"][0]["link_layer"] = "Ethernet"
    (finding,) = judge(Recording.model_validate(data))
    assert (finding.code, finding.severity.value) == ("DD436", "info")
    alone = recording.model_copy(update={"world": recording.world and recording.world.model_copy(update={"nnodes": 1})})
    assert "DD436" not in codes_of(alone)


def test_level_that_forbids_gpudirect_should_be_unset():
    recording = with_fact(load("infiniband-without-gpudirect"), "env_vars", variables={"NCCL_NET_GDR_LEVEL": "LOC"})
    (finding,) = judge(recording)
    assert "NCCL_NET_GDR_LEVEL=LOC disables it" in finding.detail
    assert finding.remedies[0].settings[0].action == "unset"


def test_staging_is_expected_for_consumer_gpus_far_nics_and_old_kernels():
    recording = load("infiniband-without-gpudirect")
    data = recording.model_dump(mode="json")
    for reading in data["readings"]:
        for gpu in reading["fact"].get("gpus", ()) if reading["check"] == "gpus" else ():
            gpu["name"] = "NVIDIA GeForce RTX 4090"
    assert codes_of(Recording.model_validate(data)) == []
    data = recording.model_dump(mode="json")
    for reading in data["readings"]:
        for row in reading["fact"].get("links", {}).values():
            row.update({name: "NODE" for name, code in row.items() if code == "PIX"})
    assert codes_of(Recording.model_validate(data)) == []
    kernel = {"kind": "kernel/1", "driver_version": "570.86.15", "driver_is_open": False}
    data = recording.model_dump(mode="json")
    data["readings"] += [{"check": "kernel", "status": "collected", "node": node, "fact": kernel} for node in (0, 1)]
    assert codes_of(Recording.model_validate(data)) == []


@pytest.mark.parametrize(
    ("devices", "names", "why"),
    [
        ((51, 67), ("node0", "node1"), "their host names differ (node0 and node1) and each has its own /dev/shm"),
        ((51, 67), ("node0", "node0"), "different hosts: each has its own /dev/shm."),
        ((51, 51), ("node0", "node1"), "different hosts: their host names differ (node0 and node1)."),
        ((51, 51), ("node0", "node0"), "as far as they were read, are the same."),
    ],
)
def test_separation_of_two_containers_is_explained(devices: tuple[int, int], names: tuple[str, str], why: str):
    data = load("two-containers-of-one-machine").model_dump(mode="json")
    for reading in data["readings"]:
        if reading["check"] == "interfaces":
            reading["fact"]["hostname"] = names[reading["node"]]
    data["readings"] += [
        {
            "check": "host",
            "status": "collected",
            "node": node,
            "fact": {"kind": "host/1", "cpus": 8, "shm_device": device},
        }
        for node, device in enumerate(devices)
    ]
    (finding,) = [one for one in judge(Recording.model_validate(data)) if one.code == "DD438"]
    assert why in finding.detail


def test_rates_come_from_the_topology_if_the_gpus_were_not_read():
    data = load("nvswitch-all-p2p").model_dump(mode="json")
    data["readings"] = [one for one in data["readings"] if one["check"] == "topology"]
    link = {"index": 0, "active": True, "gb_per_s": 26.562}
    fact = data["readings"][0]["fact"]
    fact["nvlinks"] = [{"gpu": f"GPU{at}", "links": [link]} for at in range(8)]
    (place,) = places(Recording.model_validate(data))
    assert {one.rate_gb_per_s for one in place.expected()} == {370.8}
    device = {"kind": "gpu", "root": "pci0000:15", "link_speed": "32.0 GT/s PCIe", "link_width": 16, "bus_id": "x"}
    fact["pci"] = [{**device, "name": f"GPU{at}"} for at in range(8)]
    (place,) = places(Recording.model_validate(data))
    assert place.rate(("GPU0", "GPU1"), "PIX", "P2P") == 48.0


# --- how fast ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "change"),
    [
        pytest.param("allreduce", {"size_bytes": 16 << 20}, id="smaller messages"),
        pytest.param("gpus", {"mig_enabled": True}, id="MIG"),
        pytest.param("gpus", {"processes": [{"pid": 7, "kind": "compute"}]}, id="busy"),
        pytest.param("gpus", {"uuid": "GPU-another"}, id="unknown GPUs"),
        pytest.param("process_group", {"gpu_uuid": "GPU-00000000-0000-4000-8000-00000000000a"}, id="shared"),
    ],
)
def test_slow_all_reduce_has_no_finding_if_another_cause_may_explain_it(check: str, change: dict[str, Any]):
    data = load("nvlink-at-a-tenth").model_dump(mode="json")
    for reading in data["readings"]:
        if reading["check"] == check:
            fact = reading["fact"]
            for one in fact.get("sizes") or fact.get("gpus") or [fact]:
                one.update(change)
    assert codes_of(Recording.model_validate(data)) == []


# --- to the network ------------------------------------------------------------------------------


def network_lines(recording: Recording) -> list[str]:
    return network_table(to_network(recording, places(recording)[0])).splitlines()[2:]


def with_kernel(recording: Recording, **fact: Any) -> Recording:
    data = recording.model_dump(mode="json")
    kernel = {"kind": "kernel/1", **fact}
    data["readings"].append({"check": "kernel", "status": "collected", "node": 0, "fact": kernel})
    return Recording.model_validate(data)


def test_nic_below_the_switch_reaches_gpu_memory_if_the_kernel_can():
    recording = load("infiniband-with-gpudirect")
    assert network_lines(with_kernel(recording, peermem="nvidia_peermem")) == [
        " PIX   GPU0, GPU1  GPUDirect RDMA  48 GB/s  nvidia_peermem is loaded"
    ]
    closed = with_kernel(recording, driver_version="570.86.15", driver_is_open=False)
    assert network_lines(closed)[0].startswith(" PIX   GPU0, GPU1  host memory  48 GB/s  no peer memory module")
    assert "GPUDirect RDMA?" in network_lines(recording)[0]


def test_level_and_port_that_is_not_chosen_decide_which_nic_and_how():
    recording = with_fact(load("infiniband-with-gpudirect"), "env_vars", variables={"NCCL_NET_GDR_LEVEL": "LOC"})
    assert "host memory" in network_lines(recording)[0]
    assert "NCCL_NET_GDR_LEVEL=LOC is set" in network_lines(recording)[0]
    one_port = with_fact(load("infiniband-with-gpudirect"), "rdma", settings={"NCCL_IB_HCA": "=mlx5_0"})
    assert [line.split()[:2] for line in network_lines(one_port)] == [["PIX", "GPU0"], ["PXN", "GPU1"]]
    without = with_fact(one_port, "env_vars", variables={"NCCL_PXN_DISABLE": "1"})
    assert [line.split()[:2] for line in network_lines(without)] == [["PIX", "GPU0"], ["SYS", "GPU1"]]
    assert network_table(to_network(load("nvswitch-all-p2p"), places(load("nvswitch-all-p2p"))[0])) == ""


def with_port_rates(recording: Recording, **gbit_per_s: float) -> Recording:
    fact = next(one.fact for one in recording.readings if one.check == "rdma") or {}
    changed = [
        {**hca, "ports": [{**port, "rate_gbit_per_s": gbit_per_s[hca["name"]]} for port in hca["ports"]]}
        for hca in fact["hcas"]
    ]
    return with_fact(recording, "rdma", hcas=changed)


def test_nccl_chooses_the_fastest_nic_and_the_nearest_of_equal_ones():
    recording = load("infiniband-with-gpudirect")
    slow_and_near = with_port_rates(recording, mlx5_0=100.0, mlx5_1=400.0)
    found = list(to_network(slow_and_near, places(slow_and_near)[0]))
    assert [(way.gpu, way.nics, way.code, way.rate_gb_per_s) for way in found] == [
        ("GPU0", ("mlx5_1",), "PXN", 48.0),
        ("GPU1", ("mlx5_1",), "PIX", 48.0),
    ]
    alone = with_fact(slow_and_near, "env_vars", variables={"NCCL_PXN_DISABLE": "1"})
    assert [(way.nics, way.code, way.rate_gb_per_s) for way in to_network(alone, places(alone)[0])] == [
        (("mlx5_1",), "SYS", 22.0),
        (("mlx5_1",), "PIX", 48.0),
    ]
    slower = with_port_rates(alone, mlx5_0=200.0, mlx5_1=400.0)
    assert [way.nics for way in to_network(slower, places(slower)[0])] == [("mlx5_0",), ("mlx5_1",)]


def test_nccl_uses_another_gpu_on_the_way_only_with_gpudirect_rdma():
    one_port = with_fact(load("infiniband-with-gpudirect"), "rdma", settings={"NCCL_IB_HCA": "=mlx5_0"})
    able = with_kernel(one_port, peermem="nvidia_peermem")
    assert [way.code for way in to_network(able, places(able)[0])] == ["PIX", "PXN"]
    unable = with_kernel(one_port, driver_version="570.86.15", driver_is_open=False)
    found = [(way.code, way.nccl_path) for way in to_network(unable, places(unable)[0])]
    assert found == [("PIX", "PHB"), ("SYS", "SYS")]


def test_network_within_a_node_is_used_if_faster_than_the_socket_link():
    machine = servers.nic_beside_each_gpu()
    (pair,) = places(record([machine]))[0].expected()
    assert (pair.code, pair.choice.kind, pair.choice.sure) == ("SYS", "NET", True)
    slow = servers.nic_beside_each_gpu()
    slow.board.tree.write("/sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n")
    (pair,) = places(record([slow]))[0].expected()
    assert (pair.choice.kind, pair.choice.sure) == ("SHM", True)


def test_gpus_joined_through_a_third_have_the_rate_of_its_links():
    (place,) = places(record([servers.v100_dgx1()]))
    rates = {pair.gpus: pair.rate_gb_per_s for pair in place.expected()}
    assert rates["GPU0", "GPU5"] == 20.0
    assert rates["GPU0", "GPU7"] == 40.0  # two links to GPU 4, and two from there


# --- how far GPUDirect RDMA goes -----------------------------------------------------------------


BEHIND = "nic-behind-the-host-bridge"
ALONE = {"nnodes": 1, "nproc_per_node": 2, "world_size": 2, "backend": "nccl"}


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(with_fact(load(BEHIND), "env_vars", variables={"NCCL_NET_GDR_LEVEL": "SYS"}), id="somebody chose"),
        pytest.param(with_fact(load(BEHIND), "kernel", peermem=None), id="it is not possible"),
        pytest.param(with_fact(load(BEHIND), "kernel", driver_is_open=None, peermem=None), id="not known"),
        pytest.param(with_fact(load(BEHIND), "topology", cpu_vendor="ARM"), id="another kind of CPU"),
        pytest.param(with_fact(load(BEHIND), "topology", job_gpus=[]), id="no GPU of the job"),
        pytest.param(with_fact(load(BEHIND), "rdma", unused_by="NCCL_NET=Socket"), id="no RDMA is used"),
        pytest.param(with_log(load(BEHIND), lambda log: log.replace("NET/IB/0", "NET/IB/0/GDRDMA")), id="it is used"),
        pytest.param(
            load(BEHIND).model_copy(update={"world": World.model_validate(ALONE), "trials": ()}), id="one node"
        ),
    ],
)
def test_level_is_not_proposed_if_not_needed_or_not_known_to_help(changed: Recording):
    assert "DD441" not in [one.code for one in judge(changed)]


def test_level_for_gh200_is_proposed_before_nccl_had_it_as_default():
    recording = load(BEHIND)
    fact = next(one.fact for one in recording.readings if one.check == "gpus") or {}
    gpus = [{**gpu, "name": "NVIDIA GH200 480GB"} for gpu in fact["gpus"]]
    grace = with_fact(with_fact(recording, "gpus", gpus=gpus), "topology", cpu_vendor="ARM")
    old = with_log(grace, lambda log: log.replace("2.27.5", "2.24.3"))
    assert "DD441" not in [one.code for one in judge(grace)]
    (finding,) = [one for one in judge(old) if one.code == "DD441"]
    assert finding.remedies[0].settings[0].value == "SYS"
