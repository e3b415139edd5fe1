"""Compare the table of variables with every name that the installed torch mentions, for any release."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from ddp_doctor.settings.names import DISTRIBUTED_PREFIXES, is_unknown, nearest
from ddp_doctor.settings.table import variables
from tests import elf
from tests.settings.test_table import torch_folder

torches = pytest.mark.torches("names of variables in torch's files")

#: Texts in capitals that are not variables, and their meaning.
NO_VARIABLES = {
    "GLOO_ASYNC_TIMEOUT_DEBUG": "the last word of an assertion (torch/csrc/distributed/c10d/TraceUtils.h)",
    "NCCL_CHECK_TIMEOUT": "a macro, in the text of an error",
    "NCCL_CTA_POLICY_DEFAULT": "a constant of Python",
    "NCCL_CTA_POLICY_EFFICIENCY": "a constant of Python",
    "NCCL_CTA_POLICY_ZERO": "a constant of Python",
    "TORCH_GLOO_LAZY_": "the first 16 bytes of TORCH_GLOO_LAZY_INIT, which the compiler compares at once",
}


@pytest.fixture(scope="module")
def mentioned() -> Mapping[str, str]:
    """Return each name that may be a variable of torch, NCCL or gloo, with a file that mentions it."""
    files = dict[str, str]()
    for path in torch_folder().rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        files |= dict.fromkeys(re.findall(r"""["']([A-Z][A-Z0-9]*_[A-Z0-9_]+)["']""", text), path.name)
    for path in (torch_folder() / "lib").glob("lib*.so"):
        try:
            read_only = elf.texts(path)
        except KeyError:  # a stub library that only lists other libraries
            continue
        for prefix in ("TORCH", *DISTRIBUTED_PREFIXES):
            files |= dict.fromkeys(elf.names(read_only, prefix), path.name)
    return files


@torches
def test_the_names_are_found_in_python_files_and_in_libraries(mentioned):
    assert mentioned["TORCHELASTIC_RUN_ID"].endswith(".py")
    assert mentioned["GLOO_SOCKET_IFNAME"].startswith("libtorch_")


@torches
def test_every_name_that_torch_mentions_is_known_or_not_a_variable(mentioned):
    unknown = {name: file for name, file in mentioned.items() if is_unknown(name)}
    assert {name: file for name, file in unknown.items() if name not in NO_VARIABLES} == {}


@torches
def test_no_name_that_torch_mentions_is_called_a_misspelling(mentioned):
    assert {name: meant for name in mentioned if is_unknown(name) and (meant := nearest(name))} == {}


def test_texts_that_are_not_variables_have_no_row():
    assert not NO_VARIABLES.keys() & variables().keys()
