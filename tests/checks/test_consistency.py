"""Agreement of the nodes: a node that differs is blamed, but neither of two; values that may differ are ignored."""

from hypothesis import example, given
from hypothesis import strategies as st

import ddp_doctor
from ddp_doctor.checks.cluster import consistency
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.facts.cluster import ConsistencyFact
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.model.recording import Recording
from ddp_doctor.settings.table import variables
from ddp_doctor.settings.values import effective
from ddp_doctor.wording.differences import split
from tests.fakes import FakeContext
from tests.readings import collected, uneven_world


class NodesContext(FakeContext):
    clock_offset_s: float | None = None


# --- the fact ------------------------------------------------------------------------------------


def test_node_reports_its_version_of_ddp_doctor_and_its_clock():
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


# --- settings ------------------------------------------------------------------------------------


@example("NCCL_DEBUG_TIMESTAMP_FORMAT", "")
@given(st.sampled_from(sorted(variables())), st.text(max_size=8))
def test_effective_values_ignore_spaces_and_defaults(name: str, value: str):
    assert effective(name, None) is None
    assert effective(name, value) == effective(name, f" {value} ")
    assert effective(name, variables()[name].default) is None


# --- all together --------------------------------------------------------------------------------


def test_thousands_of_different_nodes_are_one_short_finding():
    readings = [
        collected(check, fact, node)
        for node in range(500)
        for check, fact in (
            ("consistency", ConsistencyFact(tool_version="0.1.0")),
            ("env_vars", EnvVars(variables={"NCCL_BUFFSIZE": str(node)})),
        )
    ]
    recording = Recording(world=uneven_world((2,) * 500, "nccl"), readings=tuple(readings))

    (found,) = (one for one in diagnose(recording).findings if one.code == "DD551")

    assert len(found.title) < 300
    assert len(found.evidence[0].text) < 400
