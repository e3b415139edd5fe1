import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.topology.cluster_kinds import AZURE_ASSET_TAG, Kind, Maker, cluster_of

AWS = Maker("Amazon EC2", "g5.12xlarge", "Amazon EC2", ("ena",))
GOOGLE = Maker("Google", "Google Compute Engine", None, ("gve",))
AZURE = Maker("Microsoft Corporation", "Virtual Machine", AZURE_ASSET_TAG, ("mana",))
HYPER_V = Maker("Microsoft Corporation", "Virtual Machine", "0000-0014-1234", ("hv_netvsc",))
CHROMEBOOK = Maker("Google", "Eve", None, ("iwlwifi",))
SERVER = Maker("Supermicro", "SYS-821GE-TNHR", None, ("ixgbe", "mlx5_core"))


@pytest.mark.parametrize(
    ("maker", "layers", "has_efa", "kind"),
    [
        (AWS, [], False, "AWS without EFA"),
        (AWS, [], True, "AWS with EFA"),
        (Maker(), [], True, "AWS with EFA"),
        (GOOGLE, [], False, "Google Cloud without RDMA"),
        (GOOGLE, ["Ethernet"], False, "Google Cloud with RoCE"),
        (AZURE, ["InfiniBand", "Ethernet"], False, "Azure with InfiniBand"),
        (AZURE, ["Ethernet"], False, "Azure without InfiniBand"),
        (HYPER_V, [], False, "Ethernet"),
        (HYPER_V, ["InfiniBand"], False, "InfiniBand"),
        (CHROMEBOOK, [], False, "unknown"),
        (SERVER, ["InfiniBand"], False, "InfiniBand"),
        (SERVER, ["Ethernet"], False, "RoCE"),
        (SERVER, [], False, "Ethernet"),
        (Maker("Supermicro"), [], False, "unknown"),
        (Maker(), [], False, "unknown"),
    ],
)
def test_kind_follows_from_the_known_facts(maker: Maker, layers: list[str], has_efa: bool, kind: Kind):
    assert cluster_of(maker, layers, has_efa=has_efa).kind == kind


@given(
    st.builds(
        Maker,
        st.none() | st.text(max_size=20),
        st.none() | st.text(max_size=20),
        st.none() | st.text(max_size=20),
        st.lists(st.text(max_size=9), max_size=3).map(tuple),
    ),
    st.lists(st.sampled_from(["InfiniBand", "Ethernet", "IB", ""]), max_size=3),
)
def test_unknown_names_are_not_a_cloud(maker: Maker, layers: list[str]):
    cluster = cluster_of(maker, layers, has_efa=False)

    assert cluster.kind in ("InfiniBand", "RoCE", "Ethernet", "unknown") or maker.vendor in ("Amazon EC2", "Google")
    assert cluster.in_words.startswith(cluster.kind)
