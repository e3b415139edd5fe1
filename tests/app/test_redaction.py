"""Recordings for others: other names, the same findings."""

import json
import re

import pytest

from ddp_doctor import app
from ddp_doctor.app.redaction import redacted
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Node, Options, Recording, World
from tests.recordings import SITUATIONS, codes, judged, load

UUID = "8932f933-d72c-4106-c12f-20bd9faed9f6"
LINES = (
    "gpu017 gpu018.cluster.corp.example GPU017: 10.31.7.12/24 10.31.7.200:29500 10.31.8.1<0> 84.17.5.9",
    "/home/alice/llm/train.py:12 /home/alice/llm/data/x.pt train.py /lustre/acme/llm bob@gpu017 /usr/lib/libc.so.6",
    f"GPU-{UUID} MIG-{UUID} GPU-8932f934-0000-4106-c12f-20bd9faed9f6 CUDA_VISIBLE_DEVICES=GPU-8932f933",
    "fe80::ac0:ebff:fe12:3456%ib0 2001:470:1:2::17 0000:0000:0000:0000:0000:ffff:0a1f:070c 08:c0:eb:12:34:56",
    "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py 127.0.0.1 0000:1b:00.0 12:30:59 c10d::send",
)
PRIVATE = "gpu017 gpu018 corp 10.31 84.17 alice bob llm train acme 8932f93 ebff c0:eb 470"


def recording() -> Recording:
    world = World(
        nnodes=2,
        nodes=(
            Node(hostname="gpu017", addresses={"eth0": ("10.31.7.12",)}),
            Node(node_rank=1, hostname="gpu018.cluster.corp.example"),
        ),
    )
    reading = Reading(check="env_vars", status=Status.FAILED, reason="\n".join(LINES))
    return Recording(run_id="20260101T000000Z-000000", world=world, readings=(reading,))


def redacted_lines() -> list[str]:
    return (redacted(recording()).readings[0].reason or "").split("\n")


def test_site_names_are_removed_and_common_names_stay():
    text = redacted(recording()).model_dump_json()
    assert [name for name in PRIVATE.split() if name in text.lower()] == []
    for stays in (LINES[-1], "/usr/lib/libc.so.6", "eth0", "%ib0"):
        assert stays in text


def test_common_parts_of_names_stay():
    hosts, paths, uuids, addresses, _ = redacted_lines()
    assert hosts.startswith("host1 host2.domain1 host1: 10.0.0.12/24 10.0.0.200:29500 10.0.8.1<0> 20.0.0.9"), hosts
    assert paths == (
        "/home/user1/dir1/file1.py:12 /home/user1/dir1/dir2/file2.pt file1.py /dir3/dir4/dir1 user2@host1"
        " /usr/lib/libc.so.6"
    )
    whole, slice_, other, short = re.findall("(?:GPU|MIG)-([0-9a-f-]+)", uuids)
    assert whole == slice_
    assert whole.startswith(short)
    assert whole[:7] == other[:7]
    assert whole != other
    assert ipv4_mapped(addresses) == "10.0.0.12"


def ipv4_mapped(line: str) -> str:
    high, low = (int(part, 16) for part in line.split()[2].split(":")[-2:])
    return f"{high >> 8}.{high & 255}.{low >> 8}.{low & 255}"


def test_hosts_of_a_slurm_list_get_the_names_of_the_world():
    variables = {"SLURM_JOB_NODELIST": "gpu[017-019]", "SLURM_JOB_USER": "carol"}
    reading = Reading(check="env_vars", status=Status.COLLECTED, fact={"kind": EnvVars.KIND, "variables": variables})
    [_, made] = redacted(recording().model_copy(update={"readings": (*recording().readings, reading)})).readings
    assert made.fact is not None
    assert made.fact["variables"] == {"SLURM_JOB_NODELIST": "host1,host2,host3", "SLURM_JOB_USER": "user3"}


def test_second_redaction_does_not_change_the_recording():
    once = redacted(recording())
    assert redacted(once) == once


@pytest.mark.parametrize("at", range(8))
def test_redacted_recordings_keep_their_findings(at: int):
    for situation in SITUATIONS[at::64]:
        once = redacted(load(situation))
        report = app.judge(once).report
        assert sorted(finding.code for finding in report.findings) == codes(situation), situation
        assert report.verdict == judged(situation).report.verdict
        assert redacted(once) == once, situation
        hosts = {node.hostname for node in (load(situation).world or World()).nodes} - {"localhost", "host1"}
        assert not hosts & set(re.findall(r"[\w.-]+", json.dumps(once.model_dump(mode="json")))), situation


@pytest.mark.parametrize("path", ["secret/train", "My Secret Data", "/home/anna/My Secret Data", "/srv/secret/a:b"])
def test_paths_of_the_data_and_of_the_topology_are_replaced_however_they_are_written(path: str):
    options = redacted(Recording(options=Options(data=path, topology=path))).options

    assert not re.search("secret|anna|Data|train", f"{options.data} {options.topology}", re.IGNORECASE)
