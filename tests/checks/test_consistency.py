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
    clock_offset_s: float | None = None


SOFTWARE = Software(
    python="3.11.7",
    machine="x86_64",
    torch_version="2.9.1+cu128",
    torch_cuda="12.8",
    nccl_loaded="2.27.5",
    driver="580.95.05",
)


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


# --- versions ------------------------------------------------------------------------------------


def _software(nodes: int, odd: dict[int, dict[str, Any]], base: Software = SOFTWARE) -> list[tuple[int, Fact]]:
    return [(at, base.model_copy(update=odd.get(at, {}))) for at in range(nodes)]


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


# --- settings ------------------------------------------------------------------------------------


def _settings(*variables: dict[str, str], backend: str = "nccl", more: Any = ()) -> list[Finding]:
    environments = [(at, EnvVars(variables=one)) for at, one in enumerate(variables)]
    return _findings(_recording(len(variables), *environments, *more, backend=backend))


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


def test_with_gloo_asked_for_gpus_do_not_matter():
    recording = _recording(2, *_gpus(8, 0), absent=(1,), backend="gloo").model_copy(
        update={"options": Options(backend=Backend.GLOO)}
    )

    assert _findings(recording) == []


# --- clocks --------------------------------------------------------------------------------------


def _clocks(*offsets: float | None) -> list[Finding]:
    facts = [(at, ConsistencyFact(tool_version="0.1.0", clock_offset_s=one)) for at, one in enumerate(offsets)]
    return _findings(_recording(len(offsets), *facts))


def test_a_clock_between_one_and_five_seconds_off_is_information():
    (found,) = _clocks(0.0, 0.0, -2.5)

    assert (found.severity, _nodes(found)) == (Severity.INFO, ["node2"])


def test_several_clocks_that_are_off_are_one_finding():
    (found,) = _clocks(0.0, 0.1, 10.0, -0.1, -20.0)

    assert found.title == "Clocks of node2 and node4 differ by up to 20.0 s from the other nodes"


# --- all together --------------------------------------------------------------------------------


def test_thousands_of_nodes_of_which_each_is_different_are_one_short_finding():
    facts = [(at, EnvVars(variables={"NCCL_BUFFSIZE": str(at)})) for at in range(500)]

    found = _only(_recording(500, *facts))

    assert len(found.title) < 300
    assert len(found.evidence[0].text) < 400
