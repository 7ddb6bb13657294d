"""A node's name is a host name or address, and two names differ in more than case."""

import pytest

from gpuwarden.node_name import NodeNameError, check_node_name, twin_of


@pytest.mark.parametrize(
    "name",
    ["n1", "gpu-0.rack-4.example.com", "ip-10-0-0-7", "10.0.0.7", "fe80::1", "::1", "Node_A", "a" * 253],
)  # fmt: skip
def test_names_and_addresses_of_hosts_are_names_of_nodes(name: str) -> None:
    assert check_node_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "../../x", "..", "-n1", "n1 ", " n1", "n1\n", "vx;rm", "a/b", "n\u00f6", "n\x00", "a" * 254, None, 5],
)  # fmt: skip
def test_other_texts_are_refused_in_one_line(name: object) -> None:
    with pytest.raises(NodeNameError, match="cannot be the name of a node") as refused:
        check_node_name(name)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


def test_a_twin_differs_in_case_alone() -> None:
    assert twin_of("V1", ["v2", "v1"]) == "v1"
    assert twin_of("v1", ["v1", "v11"]) is None
