"""The tested torch releases, and the page about them."""

import re

import pytest

from tools import torches
from tools.torches import BEGIN, Case, Trial, page, read_cases, wanted

LISTING = """torch (2.15.0)
Available versions: 2.16.0rc1, 2.15.0, 2.14.1+cu130, 2.13.0+cpu, 2.13.0, 2.10.0, 2.9.1, 2.5.1, 2.4.1, 2.4.0, 2.3.1
  INSTALLED: 2.13.0+cpu
"""
PYPROJECT = '[project.optional-dependencies]\ntorch = ["torch>=2.4"]\n'
HEALTHY = Case("t.healthy", "healthy runs", "passed", 20.0)
FAILED = Case("t.hangs", "hangs", "failed", 2.6)
SKIPPED = Case("t.entries", "the recorder", "skipped", 0.1, "this torch has none")


def rows(text: str) -> list[str]:
    return re.findall(r"^\| \d.*$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("pinned", "tried"),
    [
        ("2.13.0", {"2.4.1": "oldest supported", "2.13.0": "pinned in constraints.txt", "2.15.0": "newest"}),
        ("2.15.0", {"2.4.1": "oldest supported", "2.15.0": "pinned in constraints.txt"}),
        ("2.4.1", {"2.4.1": "oldest supported", "2.15.0": "newest"}),
    ],
)
def test_the_last_of_the_oldest_series_the_pinned_and_the_newest_torch_are_tried(pinned, tried):
    assert wanted(LISTING, PYPROJECT, f"# run time\ntorch=={pinned}\n") == tried


@pytest.mark.parametrize("listing", ["", "Available versions: 2.15.0, 2.40.1\n"])
def test_python_without_the_oldest_series_is_refused(listing):
    with pytest.raises(ValueError, match=r"no torch 2\.4"):
        wanted(listing, PYPROJECT, "torch==2.13.0\n")


def test_results_of_pytest_are_read_by_subject(tmp_path):
    results = tmp_path / "results.xml"
    subject = '<properties><property name="subject" value="hangs"/></properties>'
    results.write_text(
        f"""<testsuites><testsuite>
        <testcase classname="t" name="a" time="1.5">{subject}</testcase>
        <testcase classname="t" name="b" time="2.0">{subject}<failure message="x"/></testcase>
        <testcase classname="t" name="c" time="0.1">{subject}<skipped message="no recorder"/></testcase>
        <testcase classname="t" name="d"><error message="ImportError"/></testcase>
        </testsuite></testsuites>"""
    )

    cases = list(read_cases(results))

    assert [(case.name, case.outcome) for case in cases] == [
        ("t.a", "passed"),
        ("t.b", "failed"),
        ("t.c", "skipped"),
        ("t.d", "failed"),
    ]
    assert [case.subject for case in cases] == ["hangs"] * 3 + ["could not be collected"]
    assert cases[2].reason == "no recorder"


@pytest.mark.parametrize(
    ("cases", "good"), [((HEALTHY, SKIPPED), True), ((HEALTHY, FAILED), False), ((SKIPPED,), False), ((), False)]
)
def test_only_a_tried_release_without_failures_is_good(cases, good):
    assert Trial("2.4.1", "oldest supported", cases).is_good is good


def test_the_page_keeps_its_head_and_names_failures_and_skips():
    tried = Trial("2.4.1+cu121", "oldest supported", (HEALTHY, FAILED, HEALTHY, SKIPPED))

    text = page((tried, Trial("2.15.0", "newest")), f"# Head\n\n{BEGIN}an older table\n")

    assert text.startswith(f"# Head\n\n{BEGIN}")
    assert "an older table" not in text
    assert rows(text) == [
        "| 2.4.1+cu121 | oldest supported | healthy runs | 2 | 0 | 0 | 40 |",
        "| 2.4.1+cu121 | oldest supported | hangs | 0 | 1 | 0 | 3 |",
        "| 2.4.1+cu121 | oldest supported | the recorder | 0 | 0 | 1 | 0 |",
        "| 2.15.0 | newest | nothing: it could not be tried | 0 | 0 | 0 | 0 |",
    ]
    assert "* torch 2.4.1+cu121, failed: `t.hangs`" in text
    assert "* torch 2.4.1+cu121, the recorder, 1 skipped: this torch has none" in text


def test_the_set_is_found_by_its_marker_and_the_page_is_made_of_its_subjects():
    marked = [path.name for path in (torches.ROOT / "tests").rglob("test_*.py") if torches._is_marked(path)]
    assert {"test_whole_runs.py", "test_misbehaving_ranks.py", "test_names_in_torch.py"} <= set(marked)
    assert BEGIN in torches.PAGE.read_text(encoding="utf-8")
