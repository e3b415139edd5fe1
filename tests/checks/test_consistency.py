"""Agreement: the odd node is named, of two nobody; what may differ is left alone."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ddp_doctor
from ddp_doctor.checks.cluster import consistency
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.facts.cluster import ConsistencyFact
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.gpus import Gpu, GpusFact, PciGpu
from ddp_doctor.facts.node.host import Host
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.choices import Backend, Severity, Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.settings.table import variables
from ddp_doctor.settings.values import effective
from ddp_doctor.wording.differences import split
from tests.fakes import FakeContext
from tests.readings import collected, replayed, uneven_world


class NodesContext(FakeContext):
    """One node of several, as far as this check asks."""

    clock_offset_s: float | None = None


SOFTWARE = Software(
    python="3.11.7",
    machine="x86_64",
    torch_version="2.9.1+cu128",
    torch_cuda="12.8",
    nccl_loaded="2.27.5",
    driver="580.95.05",
)
CPU_SOFTWARE = Software(python="3.11.7", machine="x86_64", torch_version="2.13.0+cpu")


def _recording(
    nodes: int, *facts: tuple[int, Fact], backend: str = "nccl", nproc: Any = (), absent: Any = (), **options: Any
) -> Recording:
    counts = tuple(nproc) or (2,) * nodes
    checks = {Software: "software", EnvVars: "env_vars", GpusFact: "gpus", Host: "host", ConsistencyFact: "consistency"}
    met = {node for node, fact in facts if isinstance(fact, ConsistencyFact)}
    plain = [(node, ConsistencyFact(tool_version="0.1.0")) for node in range(nodes) if node not in met]
    readings = [collected(checks[type(fact)], fact, node) for node, fact in (*plain, *facts)]
    readings += [Reading(check="gpus", status=Status.ABSENT, node=node, reason="no GPU") for node in absent]
    world = uneven_world(counts, backend)
    return Recording(world=world, options=Options(**options), readings=tuple(readings))


def _findings(recording: Recording) -> list[Finding]:
    codes = {rule.code for rule in consistency.CHECK.rules}
    return [finding for finding in diagnose(replayed(recording)).findings if finding.code in codes]


def _only(recording: Recording) -> Finding:
    (finding,) = _findings(recording)
    return finding


def _nodes(finding: Finding) -> list[str | None]:
    return [one.node for one in finding.culprits]


# --- the fact ------------------------------------------------------------------------------------


def test_a_node_hands_in_its_doctors_version_and_its_clock():
    ctx = NodesContext()
    ctx.clock_offset_s = -0.07

    fact = consistency.probe(ctx)  # type: ignore[arg-type]  # it asks for nothing else

    assert (fact.tool_version, fact.clock_offset_s) == (ddp_doctor.__version__, -0.07)


@given(st.dictionaries(st.integers(0, 40), st.sampled_from("abc"), max_size=12))
def test_nodes_are_split_into_few_and_many(values):
    found = split({node: (value, value) for node, value in values.items()})

    if found is None:
        assert len(set(values.values())) < 2
        return
    assert {node: value for value, nodes in found.groups for node in nodes} == values
    assert (found.usual is None) == (2 * found.many <= len(values))
    assert all(values[node] != found.usual for node in found.few)
    assert found.usual is None or len(found.few) + found.many == len(values)


def test_values_of_which_none_is_usual_are_a_few_groups_in_words():
    recording = _recording(5, *((at, SOFTWARE.model_copy(update={"python": f"3.{9 + at}.1"})) for at in range(5)))

    assert _only(recording).title.endswith("; and 1 more")


# --- versions ------------------------------------------------------------------------------------


def _software(nodes: int, odd: dict[int, dict[str, Any]], base: Software = SOFTWARE) -> list[tuple[int, Fact]]:
    return [(at, base.model_copy(update=odd.get(at, {}))) for at in range(nodes)]


OLD_IMAGE = {"torch_version": "2.8.0+cu128", "nccl_loaded": "2.27.3", "python": "3.10.12"}


def test_one_node_of_another_image_is_one_finding_with_all_that_differs():
    found = _only(_recording(4, *_software(4, {2: OLD_IMAGE})))

    assert (found.code, found.severity, _nodes(found)) == ("DD550", Severity.ERROR, ["node2"])
    assert found.title == (
        "node2 runs NCCL 2.27.3, torch 2.8.0+cu128 and Python 3.10.12 where the other 3 nodes run"
        " NCCL 2.27.5, torch 2.9.1+cu128 and Python 3.11.7"
    )
    assert found.evidence[0].text == "NCCL: 2.27.5 on node0, node1 and node3; 2.27.3 on node2"


def test_of_two_nodes_neither_is_the_odd_one():
    found = _only(_recording(2, *_software(2, {1: {"torch_version": "2.8.0+cu128"}})))

    assert (found.severity, found.culprits) == (Severity.WARNING, ())
    assert found.title == ("The nodes run different versions of torch: 2.9.1+cu128 on node0; 2.8.0+cu128 on node1")


def test_of_two_halves_neither_is_the_odd_one():
    found = _only(_recording(4, *_software(4, {1: OLD_IMAGE, 3: OLD_IMAGE})))

    assert found.culprits == ()
    assert "node1 and node3" in found.title


def test_two_nodes_that_are_odd_in_different_ways_are_two_findings():
    odd = {1: {"python": "3.10.12"}, 2: {"driver": "550.54.15"}}

    assert [_nodes(found) for found in _findings(_recording(4, *_software(4, odd)))] == [["node2"], ["node1"]]


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ({"nccl_loaded": "2.27.3"}, Severity.ERROR),
        ({"torch_version": "2.9.0+cu128"}, Severity.WARNING),
        ({"torch_cuda": "12.6"}, Severity.WARNING),
        ({"driver": "550.54.15"}, Severity.WARNING),
        ({"driver": "580.65.06"}, Severity.INFO),
        ({"python": "3.12.1"}, Severity.WARNING),
        ({"python": "3.11.9"}, Severity.INFO),
        ({"nccl_loaded": None}, None),
        ({"machine": "aarch64"}, None),
        ({"torch_git": "abc"}, None),
    ],
)
def test_how_much_a_version_matters(change: dict[str, Any], severity: Severity | None):
    found = _findings(_recording(3, *_software(3, {1: change})))

    assert [one.severity for one in found] == ([severity] if severity else [])


@pytest.mark.parametrize("change", [{"nccl_loaded": "2.27.3"}, {"driver": "550.54.15"}, {"torch_cuda": "12.6"}])
def test_what_gloo_does_not_use_is_information(change: dict[str, Any]):
    found = _only(_recording(3, *_software(3, {1: change}), backend="gloo"))

    assert found.severity is Severity.INFO


def test_another_doctor_on_one_node_is_a_warning():
    facts = [(at, ConsistencyFact(tool_version="0.2.0" if at == 2 else "0.1.0")) for at in range(3)]

    found = _only(_recording(3, *facts))

    assert (found.severity, _nodes(found)) == (Severity.WARNING, ["node2"])
    assert found.title == "node2 runs ddp-doctor 0.2.0 where the other 2 nodes run ddp-doctor 0.1.0"


# --- settings ------------------------------------------------------------------------------------


def _environments(*variables: dict[str, str]) -> list[tuple[int, Fact]]:
    return [(at, EnvVars(variables=one)) for at, one in enumerate(variables)]


def _settings(*variables: dict[str, str], backend: str = "nccl", more: Any = ()) -> list[Finding]:
    return _findings(_recording(len(variables), *_environments(*variables), *more, backend=backend))


def test_an_algorithm_that_one_node_alone_sets_is_an_error_that_names_it():
    (found,) = _settings({}, {}, {"NCCL_ALGO": "Tree"}, {})

    assert (found.code, found.severity, _nodes(found)) == ("DD551", Severity.ERROR, ["node2"])
    assert found.title == "node2 has NCCL_ALGO=Tree where the other 3 nodes have NCCL_ALGO unset"


def test_a_variable_that_one_node_alone_lacks_names_that_node():
    (found,) = _settings({"NCCL_PROTO": "Simple"}, {"NCCL_PROTO": "Simple"}, {})

    assert found.title == "node2 has NCCL_PROTO unset where the other 2 nodes have NCCL_PROTO=Simple"


def test_many_variables_of_one_shell_are_one_finding():
    odd = {
        "NCCL_ALGO": "Tree",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_BUFFSIZE": "8388608",
        "NCCL_MIN_CTAS": "8",
        "NCCL_NET": "IB",
    }

    (found,) = _settings({}, odd, {})

    assert found.severity is Severity.ERROR
    assert found.title == (
        "node1 differs from the other 2 nodes in NCCL_ALGO, NCCL_BUFFSIZE, NCCL_IB_TIMEOUT, NCCL_MIN_CTAS and 1 more"
    )
    assert len(found.evidence) == 5


def test_of_two_shells_neither_is_blamed():
    (found,) = _settings({"NCCL_PROTO": "LL"}, {})

    assert found.culprits == ()
    assert found.title == "NCCL_PROTO differs: NCCL_PROTO=LL on node0; NCCL_PROTO unset on node1"


@pytest.mark.parametrize(
    ("name", "here", "there"),
    [
        ("NCCL_CROSS_NIC", "2", None),
        ("NCCL_ALGO", "ring", "Ring"),
        ("TORCH_NCCL_BLOCKING_WAIT", "true", "1"),
        ("TORCH_NCCL_BLOCKING_WAIT", "no", None),
        ("NCCL_IB_DISABLE", " 1", "1"),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", None),
        ("NCCL_DEBUG", "INFO", "WARN"),
        ("NCCL_DEBUG_FILE", "/a", "/b"),
        ("NCCL_HOSTID", "a", "b"),
        ("NCCL_SOCKET_IFNAME", "eth0", "ens3"),
        ("GLOO_SOCKET_IFNAME", "eth0", "ens3"),
        ("NCCL_IB_HCA", "mlx5_0", "mlx5_2"),
        ("RANK", "0", "1"),
        ("PET_NODE_RANK", "0", "1"),
        ("CUDA_VISIBLE_DEVICES", "0", "1"),
        ("OMP_NUM_THREADS", "1", "8"),
        ("TORCH_HOME", "/a", "/b"),
        ("NCCL_VERSION", "2.1", "2.2"),
    ],
)
def test_what_may_differ_or_does_not_really_is_left_alone(name: str, here: str, there: str | None):
    assert _settings({name: here}, {name: there} if there else {}) == []


@pytest.mark.parametrize(
    ("name", "value", "backend", "severity"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "gloo", Severity.ERROR),
        ("TORCH_DIST_INIT_BARRIER", "1", "nccl", Severity.ERROR),
        ("TORCH_GLOO_LAZY_INIT", "1", "gloo", Severity.ERROR),
        ("TORCH_GLOO_LAZY_INIT", "1", "nccl", Severity.INFO),
        ("GLOO_DEVICE_TRANSPORT", "UV", "gloo", Severity.ERROR),
        ("NCCL_ALGO", "Tree", "gloo", Severity.INFO),
        ("NCCL_CROSS_NIC", "0", "nccl", Severity.WARNING),
        ("NCCL_IB_DISABLE", "1", "nccl", Severity.WARNING),
        ("NCCL_NET", "Socket", "nccl", Severity.WARNING),
        ("TORCH_NCCL_BLOCKING_WAIT", "1", "nccl", Severity.WARNING),
        ("TORCH_NCCL_BLOCKING_WAIT", "1", "gloo", Severity.INFO),
        ("NCCL_SOCKET_IFNAME", "eth0", "nccl", Severity.INFO),
        ("NCCL_NOBODY_KNOWS_IT", "1", "nccl", Severity.INFO),
    ],
)
def test_how_much_a_setting_of_one_node_matters(name: str, value: str, backend: str, severity: Severity):
    (found,) = _settings({}, {name: value}, {}, backend=backend)

    assert (found.severity, _nodes(found)) == (severity, ["node1"])


@pytest.mark.parametrize(("version", "severity"), [("2.20.5", Severity.ERROR), ("2.21.5", Severity.WARNING)])
def test_cross_nic_hangs_before_nccl_2_21_5(version: str, severity: Severity):
    software = [(at, SOFTWARE.model_copy(update={"nccl_loaded": version})) for at in range(3)]

    (found,) = _settings({}, {"NCCL_CROSS_NIC": "0"}, {}, more=software)

    assert found.severity is severity


@pytest.mark.parametrize("setting", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}])
def test_sockets_on_one_node_and_infiniband_on_the_others_do_not_meet(setting: dict[str, str]):
    rdma = [(at, Host(cpus=8, rdma_devices=("mlx5_0",))) for at in range(3)]

    (found,) = _settings({}, setting, {}, more=rdma)

    assert found.severity is Severity.ERROR


def test_naming_the_network_that_nccl_takes_anyhow_is_no_error():
    rdma = [(at, Host(cpus=8, rdma_devices=("mlx5_0",))) for at in range(3)]

    (found,) = _settings({}, {"NCCL_NET": "IB"}, {}, more=rdma)

    assert found.severity is Severity.WARNING


def test_a_value_that_was_withheld_is_not_taken_for_unset():
    secret = EnvVars(variables={}, withheld=("NCCL_IB_PKEY",))
    open_ = EnvVars(variables={"NCCL_IB_PKEY": "0x7fff"})

    assert _findings(_recording(3, (0, open_), (1, open_), (2, secret))) == []


@example("NCCL_DEBUG_TIMESTAMP_FORMAT", "")
@given(st.sampled_from(sorted(variables())), st.text(max_size=8))
def test_every_value_has_an_effect_that_can_be_compared(name: str, value: str):
    assert effective(name, None) is None
    assert effective(name, value) == effective(name, f" {value} ")
    assert effective(name, variables()[name].default) is None


# --- ranks and GPUs ------------------------------------------------------------------------------


def _gpus(*counts: int) -> list[tuple[int, Fact]]:
    facts = []
    for node, count in enumerate(counts):
        indices = tuple(range(count))
        gpus = tuple(Gpu(index=at, name="NVIDIA H100") for at in indices)
        facts.append((node, GpusFact(gpus=gpus, visible=indices, used=indices)))
    return [(node, fact) for node, fact in facts if counts[node]]


def test_a_node_with_fewer_ranks_makes_a_smaller_world():
    found = _only(_recording(4, backend="gloo", nproc=(2, 1, 2, 2)))

    assert (found.code, found.severity, _nodes(found)) == ("DD552", Severity.WARNING, ["node1"])
    assert found.title == (
        "Nodes start different numbers of ranks, 7 in all, and torchrun does not warn: node1 has 1 rank where the"
        " other 3 nodes have 2 ranks"
    )


def test_of_two_nodes_with_different_ranks_neither_is_blamed():
    found = _only(_recording(2, backend="gloo", nproc=(1, 2)))

    assert (
        found.title == "Nodes start different numbers of ranks, 3 in all, and torchrun does not warn:"
        " 1 rank on node0; 2 ranks on node1"
    )
    assert found.culprits == ()


def test_fewer_ranks_for_fewer_gpus_is_one_finding_about_the_gpus():
    found = _only(_recording(3, *_gpus(8, 7, 8), nproc=(8, 7, 8)))

    assert (found.code, found.severity, _nodes(found)) == ("DD554", Severity.WARNING, ["node1"])
    assert found.title == "node1 has 7 GPUs where the other 2 nodes have 8 GPUs"


def test_a_node_without_any_gpu_is_a_warning():
    found = _only(_recording(3, *_gpus(8, 8, 0), absent=(2,), backend="gloo", nproc=(8, 8, 1)))

    assert (found.code, found.severity, _nodes(found)) == ("DD554", Severity.WARNING, ["node2"])
    assert found.title == "node2 has no GPUs where the other 2 nodes have 8 GPUs"


def test_a_node_without_any_gpu_is_an_error_and_named_where_nccl_was_asked_for():
    seen = _recording(2, *_gpus(8, 0), absent=(1,), nproc=(8, 1))
    found = _only(seen.model_copy(update={"options": Options(backend=Backend.NCCL)}))

    assert (found.code, found.severity, _nodes(found)) == ("DD554", Severity.ERROR, ["node1"])
    assert found.title == "8 GPUs on node0; no GPUs on node1"


def test_more_gpus_than_ranks_on_one_node_is_information():
    assert _only(_recording(3, *_gpus(8, 4, 4), nproc=(4, 4, 4))).severity is Severity.INFO


def test_a_gpu_that_is_missing_on_the_bus_is_named_once():
    (first, *_), (lost, *_) = _gpus(8), _gpus(7)
    seven = lost[1]
    assert isinstance(seven, GpusFact)
    bus = tuple(PciGpu(bus_id=f"0000:0{at}:00.0", driver="nvidia") for at in range(8))
    at_bus = tuple(gpu.model_copy(update={"bus_id": bus[at].bus_id}) for at, gpu in enumerate(seven.gpus))
    short = seven.model_copy(update={"gpus": at_bus, "pci_gpus": bus})

    assert _findings(_recording(3, first, (1, first[1]), (2, short), nproc=(8, 8, 7))) == []


@pytest.mark.parametrize("torch", [CPU_SOFTWARE, SOFTWARE])
def test_gpus_that_no_torch_here_uses_do_not_matter(torch: Software):
    software = _software(2, {}, torch)
    recording = _recording(2, *_gpus(1, 0), *software, absent=(1,), backend="gloo")

    assert [one.code for one in _findings(recording)] == (["DD554"] if torch is SOFTWARE else [])


def test_with_gloo_asked_for_gpus_do_not_matter():
    recording = _recording(2, *_gpus(8, 0), absent=(1,), backend="gloo").model_copy(
        update={"options": Options(backend=Backend.GLOO)}
    )

    assert _findings(recording) == []


# --- clocks --------------------------------------------------------------------------------------


def _clocks(*offsets: float | None) -> list[Finding]:
    facts = [(at, ConsistencyFact(tool_version="0.1.0", clock_offset_s=one)) for at, one in enumerate(offsets)]
    return _findings(_recording(len(offsets), *facts))


@pytest.mark.parametrize("offsets", [(0.0,), (0.0, 0.2), (0.0, -0.9, 0.9), (None, None), (0.0, None, 0.1)])
def test_clocks_within_a_second_are_well(offsets: tuple[float | None, ...]):
    assert _clocks(*offsets) == []


def test_a_clock_that_is_ahead_is_named_with_the_seconds():
    (found,) = _clocks(0.0, 37.2, 0.1, -0.1)

    assert (found.code, found.severity, _nodes(found)) == ("DD553", Severity.WARNING, ["node1"])
    assert found.title == "The clock of node1 is 37.2 s ahead of those of the other 3 nodes"


def test_the_heads_own_clock_may_be_the_one_that_is_wrong():
    (found,) = _clocks(0.0, 60.1, 59.9, 60.0)

    assert found.title == "The clock of node0 is 59.9 s behind those of the other 3 nodes"
    assert _nodes(found) == ["node0"]


def test_a_clock_between_one_and_five_seconds_off_is_information():
    (found,) = _clocks(0.0, 0.0, -2.5)

    assert (found.severity, _nodes(found)) == (Severity.INFO, ["node2"])


def test_of_two_clocks_the_pair_is_named():
    (found,) = _clocks(0.0, -3600.0)

    assert found.title == "The clock of node0 is 60 min ahead of that of node1"
    assert [(one.kind, one.node, one.peer_node) for one in found.culprits] == [("pair", "node0", "node1")]


def test_two_halves_with_clocks_apart_blame_nobody():
    (found,) = _clocks(0.0, 0.1, 10.0, 10.1)

    assert found.title == "The clock of node3 is 10.1 s ahead of that of node0"
    assert found.culprits == ()


def test_several_clocks_that_are_off_are_one_finding():
    (found,) = _clocks(0.0, 0.1, 10.0, -0.1, -20.0)

    assert found.title == "The clocks of node2 and node4 are up to 20.0 s from those of the other nodes"


# --- all together --------------------------------------------------------------------------------


def test_nodes_that_did_not_meet_are_not_compared():
    facts = [*_software(2, {1: OLD_IMAGE}), *_environments({"NCCL_ALGO": "Tree"}, {}), *_gpus(8, 4)]
    whole = _recording(2, *facts, nproc=(8, 4))
    apart = tuple(one for one in whole.readings if one.check != "consistency")

    assert _findings(whole.model_copy(update={"readings": apart})) == []


def test_thousands_of_nodes_of_which_each_is_different_are_one_short_finding():
    facts = [(at, EnvVars(variables={"NCCL_BUFFSIZE": str(at)})) for at in range(2000)]

    found = _only(_recording(2000, *facts))

    assert len(found.title) < 300
    assert len(found.evidence[0].text) < 400
