from ddp_doctor.knowledge.topology.link_codes import connected


def test_names_are_grouped_by_their_first():
    assert connected("abcde", [("d", "c"), ("b", "d")]) == {"a": "a", "b": "b", "c": "b", "d": "b", "e": "e"}


def test_a_long_chain_is_one_group():
    names = [str(number) for number in range(2000)]
    links = [(names[number], names[number - 1]) for number in range(1, 2000)]
    assert set(connected(names, links).values()) == {"0"}
