"""The table of used and expected transports: on recorded runs, and on very many nodes."""

import time

import pytest

from ddp_doctor.model.recording import Recording
from ddp_doctor.render.used_transports import used_table
from tests.recordings import load


def rows(recording: Recording) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in used_table(recording).splitlines()[1:]
    ]


def test_path_that_differs_from_the_prediction_comes_first_and_is_marked():
    assert rows(load("topology/transports-pcie-neighbours-over-shared-memory")) == [
        ["PIX", "GPU0-GPU1, GPU2-GPU3", "P2P", "SHM", "24 GB/s", "differs"],
        ["SYS", "GPU0-GPU3, GPU1-GPU2", "SHM", "SHM", "22 GB/s"],
    ]


def test_nics_between_nodes_are_listed_with_their_rate():
    assert rows(load("topology/transports-nic-behind-the-host-bridge")) == [
        ["NV18", "GPU0-GPU1 on 2 nodes", "P2P", "P2P", "371 GB/s"],
        ["between nodes, mlx5_0 and mlx5_1", "host memory", "IB, host memory", "48 GB/s"],
    ]
    assert "between nodes" in used_table(load("topology/transports-sockets-beside-infiniband"))


def test_ring_over_the_nic_of_another_gpu_is_not_a_difference():
    recording = load("topology/transports-infiniband-with-gpudirect")
    (trial,) = recording.trials
    evidence = tuple(
        one.model_copy(update={"output_tail": one.output_tail.replace("NET/IB/0/GDRDMA", "NET/IB/1")})
        for one in trial.evidence
    )
    data = recording.model_copy(update={"trials": (trial.model_copy(update={"evidence": evidence}),)}).model_dump()
    kernel = {"kind": "kernel/1", "peermem": "nvidia_peermem"}
    told = ({"check": "kernel", "status": "collected", "node": node, "fact": kernel} for node in (0, 1))
    data["readings"] = (*data["readings"], *told)

    found = [row for row in rows(Recording.model_validate(data)) if row[0].startswith("between")]
    assert ["between nodes, mlx5_1", "-", "IB, host memory"] in found
    assert "differs" not in [row[-1] for row in found]


@pytest.mark.parametrize("name", ["rdma/eight-rails-healthy", "gpus/one-nearly-full", "p2p/one-slow-pair"])
def test_table_is_empty_without_a_log_of_nccl(name: str):
    assert used_table(load(name)) == ""


def test_a_run_with_gloo_has_no_table():
    recording = load("topology/transports-nvswitch-all-p2p")
    assert recording.world is not None
    gloo = recording.world.model_copy(update={"backend": "gloo"})
    assert used_table(recording.model_copy(update={"world": gloo})) == ""


def test_other_contents_of_the_log_are_one_line_below():
    recording = load("topology/transports-infiniband-with-gpudirect")
    (trial,) = recording.trials
    evidence = tuple(
        one.model_copy(
            update={
                "output_tail": one.output_tail.replace("NET/IB/0", "NET/IB/0(1)")
                + "\nNVLS multicast support is available on dev 0"
                + "\nCollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA"
            }
        )
        for one in trial.evidence
    )
    changed = recording.model_copy(update={"trials": (trial.model_copy(update={"evidence": evidence}),)})
    last = used_table(changed).splitlines()[-1]
    assert last.startswith(" NVLS multicast is offered; ")
    assert last.endswith("connections through the NIC of another GPU (PXN); CollNet by SHARP")


def of_many_nodes(count: int) -> Recording:
    """Return a recording with the eight GPUs of one recorded node on ``count`` nodes with their own GPUs."""
    data = load("topology/transports-nvswitch-all-p2p").model_dump(mode="json")
    world, (trial,) = data["world"], data["trials"]
    size = 8 * count
    nodes = [{**world["nodes"][0], "node_rank": at, "hostname": f"node{at}"} for at in range(count)]
    readings = [
        {**one, "node": at, "rank": None if one["rank"] is None else one["rank"] + 8 * at}
        for at in range(count)
        for one in data["readings"]
    ]
    evidence = [
        {
            **one,
            "node": at,
            "rank": one["rank"] + 8 * at,
            "output_tail": one["output_tail"].replace("nranks 8", f"nranks {size}"),
        }
        for at in range(count)
        for one in trial["evidence"]
    ]
    trials = [{**trial, "ranks": list(range(size)), "evidence": evidence}]
    world = {**world, "nnodes": count, "world_size": size, "nodes": nodes}
    return Recording.model_validate({**data, "world": world, "readings": readings, "trials": trials})


def test_table_of_many_nodes_is_short_and_fast():
    recording = of_many_nodes(200)
    started = time.process_time()
    lines = used_table(recording).splitlines()
    assert time.process_time() - started < 10.0  # measured: 0.2 s
    assert 2 <= len(lines) <= 12
    assert " Only the first 16 of 200 nodes were read." in lines
