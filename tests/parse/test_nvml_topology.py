"""The answer of the child that queries NVML for the topology, whole and hostile."""

import json

import pytest

from ddp_doctor.checks.node.topology.live import bonded, parse_nvml_topology


def answer(**more: object) -> str:
    link = {"index": 0, "active": True, "remote": "gpu", "remote_bus_id": "00000000:43:00.0"}
    gpus = [
        {"index": 0, "bus_id": "00000000:1B:00.0", "nvlinks": [link, {**link, "index": 1, "active": False}]},
        {"index": 2, "bus_id": "00000000:43:00.0", "nvlinks": [{**link, "remote_bus_id": "00000000:1B:00.0"}]},
    ]
    return json.dumps({"error": None, "gpus": gpus, **more})


def test_levels_and_statuses_are_translated_to_words_of_nvidia_smi() -> None:
    read = parse_nvml_topology(
        answer(ancestors=[[0, 2, 20], [0, 9, 77]], p2p={"read": [[0, 2, 0], [2, 0, 3]], "write": [[0, 2, 99]]})
    )
    assert read.pci_codes() == {"GPU0": {"GPU2": "PXB"}, "GPU2": {"GPU0": "PXB"}}
    assert read.p2p_words() == {
        "read": {"GPU0": {"GPU2": "OK"}, "GPU2": {"GPU0": "TNS"}},
        "write": {"GPU0": {"GPU2": "U"}},
    }


def test_only_active_links_that_lead_to_the_other_gpu_join_two() -> None:
    read = parse_nvml_topology(answer())
    assert list(bonded(read.ours(), {})) == [("GPU0", "GPU2", 1)]


@pytest.mark.parametrize("nothing", ["00000000:00:00.0", "FFFFFFFF:FF:FF.F"])
def test_bus_id_of_zeros_or_ones_is_unknown(nothing: str) -> None:
    gpus = [{"index": 0, "nvlinks": [{"index": 0, "active": True, "remote_bus_id": nothing}]}]
    assert parse_nvml_topology(json.dumps({"gpus": gpus})).gpus[0].nvlinks[0].remote_bus_id is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"gpus": [{}]}', '{"ancestors": [[1]]}', "Traceback"])
def test_invalid_answer_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_nvml_topology(text)
