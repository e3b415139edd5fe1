"""torchrun's own ways to write --nnodes and endpoints."""

import pytest

from ddp_doctor.parse.options import endpoint, nnodes


@pytest.mark.parametrize(("text", "least_and_most"), [("1", (1, 1)), ("4", (4, 4)), ("2:4", (2, 4))])
def test_a_number_of_nodes_is_read(text, least_and_most):
    assert nnodes(text) == least_and_most


@pytest.mark.parametrize("text", ["", "0", "-1", "4:2", "0:2", "many", "1:2:3", "99999999", "9" * 5000, "²"])
def test_invalid_number_of_nodes_is_refused(text):
    with pytest.raises(ValueError, match="invalid --nnodes"):
        nnodes(text)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("node0", ("node0", 29400)),
        ("node0:1234", ("node0", 1234)),
        ("[fd00::1]:1234", ("fd00::1", 1234)),
        ("[fd00::1]", ("fd00::1", 29400)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_an_endpoint_is_read(text, where):
    assert endpoint(text) == where


@pytest.mark.parametrize("text", ["", ":1", "node0:", "node0:65536", "node0:http", "fd00::1", "a b:1", "a:1\n"])
def test_invalid_endpoint_is_refused(text):
    with pytest.raises(ValueError, match="invalid --rdzv-endpoint"):
        endpoint(text)
