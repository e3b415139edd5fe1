"""The format of the rows in the table of settings, and that each row is read."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from ddp_doctor.settings.conditions import Condition
from ddp_doctor.settings.table import DATA, Conflict, Effect, Silencer, Variable, _sections, _variables, variables
from ddp_doctor.settings.values import _OTHERS, _READERS

ROW = "[CUDA_X]\nmeaning = Nothing.\ntype = int\nsource = here\n"
FILES = sorted((DATA / "variables").glob("*.ini"))


def written(folder: Path, text: str) -> Variable:
    path = folder / "cuda.ini"
    path.write_text(text, encoding="utf-8")
    (variable,) = _variables(path)
    return variable


def test_the_rows_are_in_order():
    for path in FILES:
        titles = re.findall(r"^\[(.+)\]$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert titles == sorted(titles, key=lambda title: title.split(": ")), path.name


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.ini")), ids=lambda path: path.stem)
def test_the_files_read_the_same_with_configparser(path):
    parser = ConfigParser(interpolation=None, delimiters=("=",), default_section="")  # rejects duplicates
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys are written as they are read
    parser.read_string(path.read_text(encoding="utf-8"))

    assert dict(_sections(path)) == {title: dict(parser[title]) for title in parser.sections()}


def test_the_owner_is_the_name_of_the_file_and_white_space_in_quotes_is_kept(tmp_path):
    row = written(tmp_path, f'{ROW}default = "a "\n')
    assert row.owner == "cuda"
    assert row.default == "a "


def test_a_default_for_each_release_becomes_a_history_with_the_newest_as_default(tmp_path):
    row = written(tmp_path, f"{ROW}default =\n    2.3: 1\n    2.4: x: y\n")
    assert row.history == (("2.3", "1"), ("2.4", "x: y"))
    assert row.default == "x: y"


@pytest.mark.parametrize(
    ("when", "condition"),
    [
        ("any", Condition("any")),
        ("0, 1", Condition("is", ("0", "1"))),
        ("not 0", Condition("not", ("0",))),
        ("< 4", Condition("below", ("4",))),
        ("> 1", Condition("above", ("1",))),
        ("has LL128", Condition("has", ("LL128",))),
        ("allows LL128", Condition("allows", ("LL128",))),
    ],
)
def test_the_conditions_of_effects_are_read(tmp_path, when, condition):
    text = f"{ROW}\n[CUDA_X: debug, mild]\nwhen = {when}\nwhy = So.\nsource = here\n"
    (effect,) = written(tmp_path, text).effects
    assert effect.when == (("CUDA_X", condition),)
    assert (effect.kind, effect.mild, effect.why, effect.source) == ("debug", True, "So.", "here")


@pytest.mark.parametrize(
    "text",
    [
        "[CUDA_X]\nmeaning = Nothing.\ntype = int\n",
        f"{ROW}color = red\n",
        f"{ROW}[CUDA_Y: slows]\nwhen = any\nwhy = So.\nsource = here\n",
        f"{ROW}[CUDA_X: slows]\nwhen = any\nsource = here\n",
        f"{ROW}[CUDA_X: range]\nbeyond = So.\nsource = here\n",
        f"{ROW}[CUDA_X: conflict]\nwhen = 1\nsays = clash\nwhy = So.\nsource = here\n",
    ],
    ids=["no source", "unknown key", "no variable", "no reason", "no range", "nothing to take out"],
)
def test_an_invalid_row_is_rejected(tmp_path, text):
    with pytest.raises((TypeError, KeyError)):
        written(tmp_path, text)


def test_consequences_of_values_refer_to_the_table_and_are_sentences():
    for variable in variables().values():
        rows: list[Effect | Silencer | Conflict] = [*variable.effects, *variable.silencers, *variable.conflicts]
        assert {name for row in rows for name, _ in row.when} <= variables().keys(), variable.name
        assert {name for row in variable.conflicts for name in row.without} <= variables().keys(), variable.name
        for text in (*(row.why for row in rows), *(row.beyond for row in variable.ranges)):
            assert re.fullmatch(r"[A-Za-z0-9].{8,200}[.]", text), variable.name
        for source in (*(row.source for row in rows), *(row.source for row in variable.ranges)):
            assert source, variable.name


def test_the_rows_use_only_known_words():
    for variable in variables().values():
        assert variable.type in {*_READERS, *_OTHERS, "text"}, variable.name
        assert {effect.kind for effect in variable.effects} <= {"debug", "slows", "unsafe"}, variable.name
        assert {row.weight for row in variable.agreements} <= {"fatal", "matters", "minor"}, variable.name
        assert variable.may_differ in ("", "yes", "in names"), variable.name
        assert variable.tried_with in (None, "nccl", "gloo"), variable.name
        for name in (variable.older_name, variable.other_backend_reads):
            assert name is None or name in variables(), variable.name


def test_the_silencers_patterns_name_variables_of_the_table_and_never_their_own():
    for variable in variables().values():
        for row in variable.silencers:
            named = [name for name in variables() if re.fullmatch(row.names, name)]
            assert named, row.name
            assert row.name not in named, row.name


def test_a_range_of_each_release_is_within_what_a_number_can_be():
    for variable in variables().values():
        for row in variable.ranges:
            assert variable.type in ("int", "bool", "size", "strict_int"), variable.name
            assert [since for since, _, _ in row.takes] == sorted(since for since, _, _ in row.takes)
            assert all(least < most for _, least, most in row.takes), variable.name
