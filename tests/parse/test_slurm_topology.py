"""Files of SLURM's topology as its manuals show them, plain lists, and what is refused."""

import re

import pytest

from ddp_doctor.parse.hostlist import MOST_HOSTS
from ddp_doctor.parse.slurm_topology import read_topology

TREE = """\
# topology/tree
SwitchName=s0 Nodes=dev[0-1]   LinkSpeed=100
switchname=s1 nodes=dev[2-3]
SwitchName=s3 Switches=s[0-2]
SwitchName=s2
"""
YAML = """\
---
- topology: fat
  cluster_default: false
  tree:
    switches:
    - switch: root
      children: leaf1,leaf2
    - nodes: "n[1-2]"
      switch: leaf1
    - switch: leaf2  # no nodes yet
- topology: nvl
  block:
    block_sizes:
      - 2
    blocks:
      - block: b1
        nodes: n[2-3]
  cluster_default: True
- topology: flat
  flat: true
"""


def _read(text: str) -> dict[str, list[str]]:
    return {leaf.name: list(leaf.hosts) for leaf in read_topology(text)}


@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        (TREE, {"s0": ["dev0", "dev1"], "s1": ["dev2", "dev3"]}),
        (TREE.replace("\n", "\r\n"), {"s0": ["dev0", "dev1"], "s1": ["dev2", "dev3"]}),
        ("BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n3\nBlockSizes=2,4\n", {"b1": ["n1", "n2"], "b2": ["n3"]}),
        ("SwitchName = s0 \\\n  Nodes = a,b\n", {"s0": ["a", "b"]}),
        ('SwitchName=s0 Nodes="a,b"', {"s0": ["a", "b"]}),
        ("SwitchName=s0 Nodes=a,a Switches=none", {"s0": ["a"]}),
        ("rack 1: node[1-2], node7\nrack2:node3 # new\n", {"rack 1": ["node1", "node2", "node7"], "rack2": ["node3"]}),
        ("\ufeffrack1: a", {"rack1": ["a"]}),
        (YAML, {"nvl:b1": ["n2", "n3"], "fat:leaf1": ["n1"]}),
        (YAML.split("- topology: nvl", maxsplit=1)[0], {"leaf1": ["n1", "n2"]}),
    ],
)
def test_the_lowest_switches_blocks_or_racks_are_the_leaves(text, leaves):
    assert _read(text) == leaves


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is empty"),
        ("# nothing\n\n", "it is empty"),
        ("SwitchName=s0\n", "it does not list any host"),
        ("- topology: a\n  flat: true\n", "it does not list any host"),
        (
            "SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=n1",
            "switch a is its own descendant (line 1)",
        ),
        ("SwitchName=a Switches=a\nSwitchName=c Nodes=n1", "switch a is its own descendant (line 1)"),
        (
            "SwitchName=a Switches=c\nSwitchName=b Switches=c\nSwitchName=c Nodes=n1",
            "switch c is a child of two switches, a and b (line 2)",
        ),
        ("SwitchName=a Switches=b", "switch 'b' is not defined (line 1)"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "a is defined in line 1 and again in line 2"),
        ("a: n[1-3]\nb: n3", "n3 is on two leaves, a and b (line 2)"),
        ("a: n[1-60000]\nb: m[1-60000]", f"the file exceeds the limit of {MOST_HOSTS} hosts (line 2)"),
        (
            "".join(f"- topology: t{at}\n  block:\n    blocks:\n    - block: b\n      nodes: n\n" for at in range(17)),
            "it exceeds the limit of 16 topologies",
        ),
        ("a: n[1-9999999]", f"with 'n[1-9999999]', the list exceeds the limit of {MOST_HOSTS} hosts (line 1)"),
        ("a: n[4-1]", "'[4-1]' is not an ascending range (line 1)"),
        ("a: n1\nn2 n3\n", "'n2 n3' in line 2 is neither SwitchName=LEAF Nodes=HOSTS nor LEAF: HOSTS"),
        ("\x7fELF\x02\x01\x00\x00", "'\\x7fELF\\x02\\x01\\x00\\x00' in line 1 is neither"),
        ("\x1b[31mred: n1", "is not a valid switch, block or rack name"),
        ("ClusterName=c\nNodeName=n1", "'ClusterName=c' in line 1 is none of SwitchName=LEAF"),
        ("SwitchName=a Nodes=n1\nInclude more.conf", "'Include more.conf' in line 2 is none of SwitchName=LEAF"),
        ("---\nkind: Pod\n", "'kind: Pod' in line 2 is not a valid first line of topology.yaml"),
        (
            "- topology: a\n  tree:\n    switches:\n    - switch: s\n      nodes:\n      - n1\n",
            "'- n1' in line 6 does not match",
        ),
        (
            "- topology: a\n  tree:\n    switches:\n    - nodes: n1\n",
            "'' is not a valid switch, block or rack name (line 4)",
        ),
        ("- topology: a\n  tree: {switches: [{switch: s, nodes: n1}]}\n", "it does not list any host"),
    ],
)
def test_invalid_topology_is_refused_in_a_sentence(text, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        read_topology(text)
    assert "\x1b" not in str(refused.value)


def test_a_chain_of_ten_thousand_switches_is_read():
    chain = "".join(f"SwitchName=s{at} Switches=s{at + 1}\n" for at in range(10_000))
    assert _read(f"{chain}SwitchName=s10000 Nodes=n1\n") == {"s10000": ["n1"]}
