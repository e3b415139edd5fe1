"""Well-known public scripts, rewritten by hand from their structure: what is reported of them was judged, line by line.

The lines stand in the samples (``# expect: DDL113``; test_samples.py holds them to it), the judgements in judged.ini:
*true*, a person would want to know; *loud*, true and of little use there; *false*.
"""

import configparser
import sysconfig
from pathlib import Path

import pytest

from ddp_doctor.lint.linting import lint_bytes
from ddp_doctor.lint.rules import RULES
from tests.lint.test_samples import expected

PUBLIC = Path(__file__).parent / "samples" / "public"
SCRIPTS = sorted(PUBLIC.glob("*.py"))
#: Modules that speak of spawning, ranks, loaders, barriers or time-outs, and are no training scripts.
OTHER = ("asyncio", "concurrent", "multiprocessing", "unittest", "email", "json", "logging", "http", "xml")


def judgements() -> configparser.ConfigParser:
    """Of each script, by code."""
    read = configparser.ConfigParser()
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string((PUBLIC / "judged.ini").read_text())
    return read


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_code_that_a_public_script_gets_was_judged_and_nothing_else(path: Path):
    assert set(judgements()[path.stem]) == {code for _, code in expected(path)}


def test_of_twenty_reported_lines_at_most_one_is_false():
    judged = judgements()
    words = [judged[path.stem][code].partition(":")[0] for path in SCRIPTS for _, code in expected(path)]

    assert set(words) <= {"true", "loud", "false"}
    assert words.count("false") * 20 <= len(words)


def test_public_scripts_are_sixteen_and_of_all_libraries():
    assert len(SCRIPTS) >= 16
    assert {one.stem.partition("_")[0] for one in SCRIPTS} >= {
        *("accelerate", "lightning", "deepspeed", "hf", "horovod", "fsdp", "imagenet", "nanogpt")
    }


def test_modules_of_the_standard_library_that_train_nothing_get_nothing():
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(file for folder in OTHER for file in (library / folder).rglob("*.py"))

    assert len(files) >= 80
    for file in files:
        linted = lint_bytes(str(file), file.read_bytes())
        assert (linted.findings, linted.failures, linted.unread) == ((), (), None), file


def test_modules_of_the_standard_library_get_nothing_even_where_they_import_torch():
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted((library / "multiprocessing").rglob("*.py")):
        linted = lint_bytes(str(file), b"import torch.distributed\n" + file.read_bytes(), RULES)
        assert (linted.findings, linted.failures) == ((), ()), file
