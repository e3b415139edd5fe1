"""Well-known public scripts, rewritten manually from their structure: each reported line was rated by a person.

The lines are in the samples (``# expect: DDL113``; test_samples.py checks them), the ratings in judged.ini: *true*,
useful to a person; *loud*, true but of little use in that place; *false*.
"""

import configparser
import sysconfig
from pathlib import Path

import pytest

from ddp_doctor.features.lint.linting import lint_bytes
from ddp_doctor.features.lint.rules import RULES
from tests.features.lint.documents import FOLDER, PUBLIC, Sample

#: Modules about spawning, ranks, loaders, barriers or timeouts that are not training scripts.
OTHER = ("asyncio", "concurrent", "multiprocessing", "unittest", "email", "json", "logging", "http", "xml")


def judgments() -> configparser.ConfigParser:
    """Return the ratings of each script by code."""
    read = configparser.ConfigParser()
    read.optionxform = str  # type: ignore[assignment, method-assign]  # keys are written as they are read
    read.read_string((FOLDER / "public" / "judged.ini").read_text())
    return read


@pytest.mark.parametrize("script", PUBLIC, ids=str)
def test_exactly_the_codes_of_each_public_script_were_rated(script: Sample):
    assert set(judgments()[script.name]) == {code for _, code in script.expected}


def test_at_most_one_of_twenty_reported_lines_is_false():
    judged = judgments()
    words = [judged[script.name][code].partition(":")[0] for script in PUBLIC for _, code in script.expected]

    assert set(words) <= {"true", "loud", "false"}
    assert words.count("false") * 20 <= len(words)


def test_public_scripts_are_of_all_libraries():
    assert len(PUBLIC) >= 12
    assert {script.name.partition("_")[0] for script in PUBLIC} >= {
        *("accelerate", "lightning", "deepspeed", "hf", "horovod", "imagenet", "nanogpt")
    }


@pytest.mark.fuzz
def test_standard_library_modules_without_training_have_no_finding():
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(file for folder in OTHER for file in (library / folder).rglob("*.py"))

    assert len(files) >= 80
    for file in files:
        linted = lint_bytes(str(file), file.read_bytes())
        assert (linted.findings, linted.failures, linted.unread) == ((), (), None), file


@pytest.mark.fuzz
def test_standard_library_modules_that_import_torch_have_no_finding():
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted((library / "multiprocessing").rglob("*.py")):
        linted = lint_bytes(str(file), b"import torch.distributed\n" + file.read_bytes(), RULES)
        assert (linted.findings, linted.failures) == ((), ()), file
