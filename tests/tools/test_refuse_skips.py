"""The gate of continuous integration, on JUnit files as pytest writes them."""

from pathlib import Path

import pytest

from tools import refuse_skips


def _junit(folder: Path, case: str) -> str:
    path = folder / "results.xml"
    path.write_text(
        '<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" tests="2">'
        '<testcase classname="tests.test_a" name="test_passes" time="0.1" />'
        f'<testcase classname="tests.test_a" name="test_b" time="0.1">{case}</testcase>'
        "</testsuite></testsuites>"
    )
    return str(path)


def test_a_missing_tool_is_refused_and_named(tmp_path, capsys):
    junit = _junit(tmp_path, '<skipped type="pytest.skip" message="shellcheck is not installed">x</skipped>')

    assert refuse_skips.main([junit]) == 1
    assert "tests.test_a.test_b: shellcheck is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case",
    [
        "",
        '<failure message="assert 0">x</failure>',  # pytest's own exit code reports it
        '<skipped type="pytest.xfail" message="known">x</skipped>',
        '<skipped type="pytest.skip" message="no folder of real topologies beside the checkout">x</skipped>',
    ],
)
def test_skip_that_no_package_would_fix_is_allowed(tmp_path, case):
    assert refuse_skips.main([_junit(tmp_path, case)]) == 0


def test_one_refused_skip_among_several_files_is_enough(tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    skipped = '<skipped type="pytest.skip" message="no C compiler">x</skipped>'

    assert refuse_skips.main([_junit(good, ""), _junit(bad, skipped)]) == 1


@pytest.mark.parametrize("allowed", refuse_skips.ALLOWED, ids=lambda allowed: allowed.pattern)
def test_every_allowed_skip_is_a_reason_of_some_test(allowed):
    texts = (path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py") if path != Path(__file__))

    assert any("pytest.skip(" in text and allowed.search(text) for text in texts)
