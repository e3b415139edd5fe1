"""Small XML: trees with line numbers, without constructs that could grow."""

import time

import pytest

from ddp_doctor.checks.node.topology.formats.nccl_xml import MOST_CHARACTERS, MOST_TAGS, parse_xml
from ddp_doctor.checks.node.topology.formats.topo_rows import TopologyError

LAUGHS = "\n".join(f'<!ENTITY l{at} "{f"&l{at - 1};" * 10}">' for at in range(1, 10))


def test_tags_keep_their_attributes_lines_and_order() -> None:
    root = parse_xml('<a x="1">\n  <b/><!-- not -->\n  <c y=" 2 "/><b/>\n</a>', first_line=10)
    assert (root.name, root.attributes, root.line) == ("a", {"x": "1"}, 10)
    assert [(child.name, child.line) for child in root.children] == [("b", 11), ("c", 12), ("b", 12)]
    assert [child.line for child in root.named("b")] == [11, 12]
    assert (root.children[1].get("y"), root.children[1].get("z")) == ("2", "")


@pytest.mark.parametrize(
    "text",
    [
        f"<!DOCTYPE a [\n{LAUGHS}\n]>\n<a>&l9;</a>",
        '<!DOCTYPE a SYSTEM "file:///etc/passwd">\n<a/>',
        '<! doctype a [<!ENTITY b "c">]><a>&b;</a>',
        '<a><!ENTITY b SYSTEM "file:///etc/passwd"></a>',
    ],
)
def test_a_document_type_or_entity_is_refused_unread(text: str) -> None:
    started = time.process_time()
    with pytest.raises(TopologyError, match="line 1: the file has a DOCTYPE or ENTITY declaration"):
        parse_xml(text)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<a>\n<b>\n</a>", "line 3: the file is not XML: mismatched tag"),
        ("<a>\n&b;</a>", "line 2: the file is not XML: undefined entity"),
        ("<a/>\n<b/>", "line 2: the file is not XML"),
        ("", "line 1: the file is not XML: no element found"),
        ("<a>" * 65, "tags, nested at most 64 deep"),
        (f"<a>{'<b/>' * MOST_TAGS}</a>", f"the file exceeds a limit for topology files: {MOST_TAGS} tags"),
        (f"<a>{' ' * MOST_CHARACTERS}</a>", "larger than 1024 KiB"),
    ],
)
def test_invalid_or_too_large_text_is_refused_with_the_line(text: str, reason: str) -> None:
    with pytest.raises(TopologyError, match=reason):
        parse_xml(text)


def test_encoding_declared_in_a_text_does_not_matter() -> None:
    assert parse_xml('<?xml version="1.0" encoding="utf-16"?><a b="\ud800é"/>').attributes == {"b": "?é"}
