"""topology: the probe's reading of nvidia-smi, and the rules on recorded machines."""

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.checks.node.rdma import probe as rdma_probe
from ddp_doctor.checks.node.topology import CHECK, probe
from ddp_doctor.checks.node.topology.pasted import read_pasted
from ddp_doctor.facts.node.software import Software
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.model.choices import Severity, Status
from ddp_doctor.model.context import CommandResult
from ddp_doctor.model.fact import Absent, CouldNotLook, Failed, Reading
from ddp_doctor.model.recording import Options, Recording, World
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.sources.machine import LiveContext
from tests import rdma_trees
from tests.fakes import FakeContext
from tests.readings import collected, findings_of
from tests.recordings import load

TESTS = Path(__file__).parents[1]
SAMPLES = TESTS / "samples" / "topology"
DRIVER_GONE = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure …\n"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


judge = partial(findings_of, CHECK)


# --- the probe -----------------------------------------------------------------------------------


def test_matrix_cpu_vendor_and_settings_of_this_host_are_recorded():
    ctx = FakeContext(
        env={"NCCL_P2P_LEVEL": "SYS", "HOME": "/root"},
        files={"/proc/cpuinfo": "vendor_id\t: AuthenticAMD\n"},
        commands={"nvidia-smi": sample("classic-two-socket.txt")},
    )
    fact = probe(ctx)
    assert isinstance(fact, TopologyFact)
    assert fact.links["GPU0"]["GPU1"] == "SYS"
    assert fact.cpu_vendor == "AuthenticAMD"
    assert fact.nccl_settings == {"NCCL_P2P_LEVEL": "SYS"}
    assert ctx.raw == sample("classic-two-socket.txt")
    assert TopologyFact.model_validate(fact.recorded()) == fact


def test_without_nvidia_smi_the_topology_is_absent():
    with pytest.raises(Absent, match="not installed"):
        probe(FakeContext())


def gpu_on_pci(driver: str, vendor: str = "0x10de") -> dict[str, Any]:
    device = "/sys/bus/pci/devices/0000:61:00.0"
    return {
        "files": {f"{device}/vendor": f"{vendor}\n", f"{device}/class": "0x030200\n"},
        "links": {f"{device}/driver": f"../../../../bus/pci/drivers/{driver}"},
    }


def test_driver_without_an_answer_for_a_gpu_fails_with_its_message():
    gone = CommandResult(("nvidia-smi",), "ended", 9, DRIVER_GONE)
    ctx = FakeContext(commands={"nvidia-smi": gone}, **gpu_on_pci("nvidia"))
    with pytest.raises(Failed, match="couldn't communicate with the NVIDIA driver"):
        probe(ctx)
    assert ctx.raw == DRIVER_GONE


def test_nvidia_smi_on_a_machine_without_a_gpu_is_absent():
    gone = CommandResult(("nvidia-smi",), "ended", 9, DRIVER_GONE)
    with pytest.raises(Absent, match="no NVIDIA GPU found"):
        probe(FakeContext(commands={"nvidia-smi": gone}, **gpu_on_pci("ast", vendor="0x1a03")))


def test_failing_nvidia_smi_does_not_prove_absence_if_the_bus_is_unreadable():
    gone = CommandResult(("nvidia-smi",), "ended", 9, DRIVER_GONE)
    with pytest.raises(Failed):
        probe(FakeContext(commands={"nvidia-smi": gone}))


def test_container_without_a_gpu_on_a_host_with_gpus_is_absent():
    gone = CommandResult(("nvidia-smi",), "ended", 9, "", "Failed to initialize NVML: Unknown Error\n")
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    machine = gpu_on_pci("nvidia")
    with pytest.raises(Absent, match="Unknown Error"):
        probe(FakeContext(env=env, commands={"nvidia-smi": gone}, **machine))
    machine["files"]["/dev/nvidia0"] = ""
    with pytest.raises(Failed, match="NVML could not be initialized"):
        probe(FakeContext(env=env, commands={"nvidia-smi": gone}, **machine))


def test_matrix_that_is_not_understood_fails_with_the_line():
    ctx = FakeContext(commands={"nvidia-smi": sample("cut-off.txt")}, **gpu_on_pci("nvidia"))
    with pytest.raises(Failed, match=r"15 of 66 links cannot be read .* line 8: the row of GPU6 is cut off"):
        probe(ctx)


def test_this_machine_has_a_topology_or_a_reason_why_not():
    try:
        fact = probe(LiveContext(dict(os.environ), time.monotonic() + 60))
    except CouldNotLook as reason:
        said = str(reason)
        assert said
    else:
        assert isinstance(fact, TopologyFact)
        assert fact.gpus


# --- recordings ----------------------------------------------------------------------------------


def with_its_bond(nccl: str) -> Recording:
    software = Software(python="3.11.7", machine="x86_64", nccl_loaded=nccl)
    facts = {"rdma": rdma_probe(rdma_trees.bond().context()), "software": software}
    matrix = load("topology/classic-two-socket-matrix-alone")
    more = tuple(collected(check, fact) for check, fact in facts.items())
    return matrix.model_copy(update={"readings": (*matrix.readings, *more)})


def test_advice_names_the_gid_entry_of_nccl_if_the_table_was_read():
    (finding,) = judge(with_its_bond("2.27.5"))
    assert finding.remedies[1].summary.endswith(
        "Leave NCCL_IB_GID_INDEX unset: NCCL 2.27.5 takes entry 3 (::ffff:10.1.0.1, RoCE v2) by itself"
    )
    assert finding.remedies[1].commands == ()


def test_advice_is_to_check_if_nccls_own_entry_is_not_routable():
    (finding,) = judge(with_its_bond("2.18.1"))
    assert "needs show_gids or sysfs" in finding.remedies[1].summary


def test_only_far_gpus_lose_p2p_if_an_old_nccl_used_it_by_default():
    recorded = load("topology/classic-two-socket-with-recorded-facts")
    trial = recorded.trials[0]
    evidence = tuple(
        one.model_copy(
            update={
                "output_tail": one.output_tail.replace("NCCL_P2P_LEVEL set", "NCCL_X set")
                .replace("0[0] -> 1[1]", "0[0] -> 1[4]")
                .replace("1[1] -> 0[0]", "1[4] -> 0[0]")
            }
        )
        for one in trial.evidence
    )
    trials = (trial.model_copy(update={"evidence": evidence}),)
    (reading,) = read_pasted(sample("pcie-two-sockets-eight-gpus.txt"))
    fact = {**(reading.fact or {}), "cpu_vendor": "AuthenticAMD"}
    world = World(world_size=2, nproc_per_node=2, backend="nccl")
    recording = Recording(world=world, readings=(reading.model_copy(update={"fact": fact}),), trials=trials)
    (finding,) = [one for one in judge(recording) if one.code == "DD401"]
    settings = [(one.name, one.value, one.action) for remedy in finding.remedies for one in remedy.settings]
    assert settings == [("NCCL_P2P_LEVEL", "PXB", "set"), ("NCCL_P2P_DISABLE", "1", "set")]


def stuck_on_two_nodes(used: int) -> Recording:
    recorded = load("topology/classic-two-socket-with-recorded-facts")
    assert recorded.world is not None
    channel = f"l4node:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/{used}/GDRDMA\n"
    trial = recorded.trials[1]
    evidence = tuple(one.model_copy(update={"output_tail": one.output_tail + channel}) for one in trial.evidence)
    return recorded.model_copy(
        update={
            "world": recorded.world.model_copy(update={"nnodes": 2, "world_size": 4}),
            "trials": (trial.model_copy(update={"evidence": evidence}),),
        }
    )


def hca_values(recording: Recording) -> list[str | None]:
    settings = [one for finding in judge(recording) for remedy in finding.remedies for one in remedy.settings]
    return [one.value for one in settings if one.name == "NCCL_IB_HCA"]


def hca_lines(recording: Recording) -> list[str]:
    """Return the lines to paste; a trial of the stalled pair would not test settings for other traffic."""
    commands = [one for finding in judge(recording) for remedy in finding.remedies for one in remedy.commands]
    return [one for one in commands if "NCCL_IB_HCA" in one]


def test_hca_is_advised_on_several_roce_nodes_if_nccl_chose_another():
    assert hca_lines(stuck_on_two_nodes(used=0)) == ["export NCCL_IB_HCA=mlx5_bond_0"]


def test_hca_is_not_advised_if_nccl_chose_it():
    assert hca_lines(stuck_on_two_nodes(used=2)) == []


def test_exact_names_are_used_if_a_prefix_would_match_another_nic():
    text = sample("classic-two-socket.txt").replace("mlx5_bond_0", "mlx5_1").replace("mlx5_2", "mlx5_10")
    (reading,) = read_pasted(text)
    assert hca_values(Recording(readings=(reading,))) == ["mlx5_10,mlx5_3,mlx5_1"]
    away = text.replace("GPU0     X      SYS     SYS     SYS     NODE", "GPU0     X      SYS     SYS     SYS     PIX ")
    away = away.replace("NIC2    NODE", "NIC2    PIX ").replace(
        "NODE    NODE    SYS     32", "SYS     SYS     PIX     32"
    )
    (reading,) = read_pasted(away)
    assert hca_values(Recording(readings=(reading,))) == ["=mlx5_1"]


def test_hostile_nic_name_never_reaches_a_setting_or_command():
    (reading,) = read_pasted(sample("hostile-nic-names.txt"))
    findings = judge(Recording(readings=(reading,)))
    assert [finding.code for finding in findings] == ["DD402", "DD404"]
    remedies = [remedy for finding in findings for remedy in finding.remedies]
    assert not any("reboot" in remedy.model_dump_json() for remedy in remedies)
    assert hca_lines(Recording(readings=(reading,))) == []


LISTED = [f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number})" for number in range(8)]


@pytest.mark.parametrize(
    ("change", "above", "severity"),
    [
        (("", ""), [], Severity.WARNING),
        (("", ""), LISTED, Severity.WARNING),
        (("NV18", "NV12"), [], Severity.WARNING),
        (("NV18", "NV4 "), [], Severity.INFO),  # a DGX Station's display card
        (("", ""), [*LISTED[:3], "GPU 3: NVIDIA A2 (UUID: GPU-3)", *LISTED[4:]], Severity.INFO),
    ],
)
def test_gpu_without_any_nvlink_is_a_warning_unless_it_may_be_a_display_card(
    change: tuple[str, str], above: list[str], severity: Severity
):
    matrix = sample("nvswitch-one-link-down.txt").replace("NV17", "SYS ").replace(*change)
    (reading,) = read_pasted("\n".join([*above, matrix]))
    (finding,) = judge(Recording(options=Options(command="topology"), readings=(reading,)))
    assert (finding.code, finding.severity) == ("DD403", severity)
    assert "GPU3 has none" in finding.title
    commands = finding.remedies[0].commands
    assert commands[0] == "nvidia-smi -q -i 3 | grep -A3 -E 'MIG Mode|Fabric'"


@pytest.mark.parametrize("links", ["NVML: Unable to retrieve NVLink information as all links are inActive", None])
@pytest.mark.parametrize(("model", "codes"), [("NVIDIA H100 80GB HBM3", ["DD406"]), ("NVIDIA H100 NVL", [])])
def test_pasted_link_states_show_a_gpu_without_nvlink(model: str, codes: list[str], links: str | None):
    up = "\n".join(f"\t Link {number}: 26.562 GB/s" for number in range(4))
    states = [links or up.replace("26.562 GB/s", "<inactive>") if gpu == 3 else up for gpu in range(8)]
    text = "\n".join(f"GPU {gpu}: {model} (UUID: GPU-{gpu})\n{state}" for gpu, state in enumerate(states))
    assert [finding.code for finding in judge(Recording(readings=read_pasted(text)))] == codes


# --- pasted text ---------------------------------------------------------------------------------


def test_two_pasted_hosts_are_distinguished():
    readings = read_pasted(sample("two-hosts.txt").replace("PHB", "SYS"))
    assert [reading.node for reading in readings] == [0, 1]
    titles = [finding.title for finding in judge(Recording(readings=readings))]
    assert ["host 1 of the text" in titles[0], "host 2 of the text" in titles[1]] == [True, True]


def test_refused_text_is_a_failed_reading_and_one_finding():
    (reading,) = read_pasted("Failed to initialize NVML: Unknown Error")
    assert (reading.status, reading.fact) == (Status.FAILED, None)
    recording = Recording(options=Options(command="topology"), readings=(reading,))
    (finding,) = judge(recording)
    assert finding.code == "DD405"
    assert "NVML could not be initialized" in finding.title


def test_live_failure_is_not_a_finding_about_pasted_text():
    failed = Reading(check="topology", status=Status.FAILED, reason="nvidia-smi gave no topology")
    assert judge(Recording(readings=(failed,))) == []


def test_huge_paste_keeps_only_its_beginning():
    (reading,) = read_pasted("x" * 1_000_000)
    assert len(reading.raw or "") == 200_000


def test_rules_are_fast_on_many_nodes():
    (reading,) = read_pasted(sample("nvswitch-one-link-down.txt"))
    count = 512
    readings = tuple(reading.model_copy(update={"node": node}) for node in range(count))
    evidence = tuple(RankEvidence(rank=rank, node=rank // 8, began=True) for rank in range(8 * count))
    trial = TrialRecord(trial="0", backend="nccl", outcome="stuck", judged_check="allreduce", evidence=evidence)
    recording = Recording(readings=readings, trials=(trial,))
    started = time.process_time()
    (finding,) = judge(recording)
    assert time.process_time() - started < 4.0
    assert len(finding.culprits) == count
