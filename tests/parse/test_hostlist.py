"""Host lists as SLURM 22.05, Open MPI 4.1 and people write them; expectations are scontrol's own."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.parse.hostlist import MOST_HOSTS, expand, expand_open_mpi, read_host_file


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("fan[1-2]", ["fan1", "fan2"]),
        (
            "node[1-4,7],gpu-[01-03]-ib",
            ["node1", "node2", "node3", "node4", "node7", "gpu-01-ib", "gpu-02-ib", "gpu-03-ib"],
        ),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("a[1-010]", [f"a{number}" for number in range(1, 11)]),
        ("a[9-10,003-005]", ["a9", "a10", "a003", "a004", "a005"]),
        ("n[1-2],n1", ["n1", "n2", "n1"]),
        ("a,b,c.example.org", ["a", "b", "c.example.org"]),
        ("admin@node[1-2]", ["admin@node1", "admin@node2"]),
        ("10.0.0.1, fd00::2", ["10.0.0.1", "fd00::2"]),
        ("r[0-1]", ["r0", "r1"]),
    ],
)
def test_a_list_is_expanded_as_scontrol_does(text, hosts):
    assert list(expand(text)) == hosts


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not a host name"),
        (",", "is not a list of hosts"),
        ("a,,b", "is not a list of hosts"),
        ("a,", "is not a list of hosts"),
        ("node[1-4", "is not a list of hosts"),
        ("node1-4]", "is not a list of hosts"),
        ("node[[1-4]]", "is not a list of hosts"),
        ("node[]", "'[]' is not a range"),
        ("node[a-b]", "'[a-b]' is not a range"),
        ("node[4-1]", "'[4-1]' is not an ascending range"),
        ("n[0-999999999]", f"the list exceeds the limit of {MOST_HOSTS} hosts"),
        ("a[1-9999]b[1-9999]", f"the list exceeds the limit of {MOST_HOSTS} hosts"),
        ("n[0-60000],m[0-60000]", f"the list exceeds the limit of {MOST_HOSTS} hosts"),
        ("-oProxyCommand=id", "is not a host name"),
        ("a@-oProxyCommand=id", "is not a host name"),
        ("-l@host", "is not a host name"),
        ("node$(id)", "is not a host name"),
        ("node 1", "is not a host name"),
        ("n[" + "1" * 5000 + "]", "is not a range"),
    ],
)
def test_invalid_list_is_refused_in_one_sentence(text, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        expand(text)

    assert len(str(refused.value)) < 200


@given(
    st.text(alphabet="abcxyz", min_size=1, max_size=5),
    st.integers(0, 2000),
    st.integers(0, 40),
    st.integers(1, 6),
    st.sampled_from(["", "-ib", ".cluster"]),
)
def test_a_range_names_each_host_once_in_order_with_its_zeros(name, first, more, width, end):
    text = f"{name}[{first:0{width}d}-{first + more:0{width}d}]{end}"
    padded = width if f"{first:0{width}d}".startswith("0") else 1

    assert list(expand(text)) == [f"{name}{n:0{padded}d}{end}" for n in range(first, first + more + 1)]


@given(st.text(alphabet="ab01-9[],@. ", max_size=40))
def test_any_text_gives_hosts_or_one_sentence(text):
    hosts = None
    with suppress(ValueError):
        hosts = expand(text)

    assert hosts is None or (hosts and not any(set("[], ") & set(host) or host[0] == "-" for host in hosts))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("fan[1:1-2]@0(2)", ["fan1", "fan2"]),
        ("fan[1:3,1-2]@0(3)", ["fan3", "fan1", "fan2"]),
        ("gpu[3:8-10],login@0(4)", ["gpu008", "gpu009", "gpu010", "login"]),
    ],
)
def test_the_hosts_of_open_mpis_daemons_are_read(text, hosts):
    assert list(expand_open_mpi(text)) == hosts


@pytest.mark.parametrize("text", ["", "fan[1-2]@0(2)", "fan[x:1-2]", "fan[999999:1]"])
def test_invalid_list_of_daemons_is_refused(text):
    with pytest.raises(ValueError, match="is not a"):
        expand_open_mpi(text)


def test_a_host_file_is_read_with_slots_comments_and_users():
    text = "# the cluster\nnode1 slots=8  # first\n\nadmin@node2\nnode3:4\ngpu[1-2]\nfd00::1\n"

    assert read_host_file(text) == ("node1", "admin@node2", "node3", "gpu1", "gpu2", "fd00::1")


def test_line_without_a_host_name_is_an_error_with_its_number():
    with pytest.raises(ValueError, match=r"'<html>' is not a host name \(line 2\)"):
        read_host_file("node1\n<html>\n")


@pytest.mark.parametrize("text", ["a[1]" * 17, "a" + "[1-2]" * 17, "[[1-2]]", "a]", "a[1", ",a", "a,,b"])
def test_meaningless_brackets_and_commas_are_refused(text):
    with pytest.raises(ValueError, match=r"is not a|exceeds the limit"):
        expand(text)


def test_a_host_file_that_names_more_hosts_than_any_cluster_has_is_refused_at_once():
    with pytest.raises(ValueError, match=r"it exceeds the limit of 65536 hosts \(line 2\)"):
        read_host_file("a[1-65536]\n" * 10_000)
