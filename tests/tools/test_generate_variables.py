"""The shipped table of variables is the one that its readable files say, and those are checked."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tools import generate_variables
from tools.generate_variables import BadRowError, main, table


def folder(tmp_path: Path, **files: str) -> Path:
    """A copy of tools/data with other texts in place of some files."""
    data = tmp_path / "data"
    shutil.copytree(generate_variables.DATA, data)
    for name, text in files.items():
        (data / "variables" / f"{name}.ini").write_text(text, encoding="utf-8")
    return data


def test_rows_are_in_order():
    for path in (generate_variables.DATA / "variables").glob("*.ini"):
        titles = re.findall(r"^\[(.+)\]$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert titles == sorted(titles, key=lambda title: title.split(": ")), path.name


ROW = "[CUDA_X]\nmeaning = Nothing.\ntype = int\nsource = here\n"


def written(data: Path, name: str = "CUDA_X") -> dict[str, Any]:
    rows: list[dict[str, Any]] = json.loads(table(data))["variables"]
    return next(row for row in rows if row["name"] == name)


def test_shipped_table_is_up_to_date():
    assert main(["--check"]) == 0, "run `make docs`"


def test_stale_table_is_told_and_writing_mends_it(tmp_path, monkeypatch, capsys):
    shipped = tmp_path / "variables.json"
    shipped.write_text("{}")
    monkeypatch.setattr(generate_variables, "SHIPPED", shipped)

    assert main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert main([]) == main(["--check"]) == 0


def test_owner_is_the_name_of_the_file_and_white_space_in_quotes_is_kept(tmp_path):
    data = folder(tmp_path, cuda=f'{ROW}default = "a "\n')
    assert written(data)["owner"] == "cuda"
    assert written(data)["default"] == "a "


def test_a_default_for_each_release_becomes_a_history_with_the_newest_as_default(tmp_path):
    row = written(folder(tmp_path, cuda=f"{ROW}default =\n    2.3: 1\n    2.4: x: y\n"))
    assert row["history"] == [["2.3", "1"], ["2.4", "x: y"]]
    assert row["default"] == "x: y"


@pytest.mark.parametrize(
    ("when", "test", "operands"),
    [
        ("any", "any", []),
        ("0, 1", "is", ["0", "1"]),
        ("not 0", "not", ["0"]),
        ("< 4", "below", ["4"]),
        ("> 1", "above", ["1"]),
        ("has LL128", "has", ["LL128"]),
        ("allows LL128", "allows", ["LL128"]),
    ],
)
def test_conditions_of_concerns_are_read(tmp_path, when, test, operands):
    text = f"{ROW}\n[CUDA_X: debug, mild]\nwhen = {when}\nwhy = So.\nsource = here\n"
    [concern] = written(folder(tmp_path, cuda=text))["concerns"]
    told = {"kind": "debug", "test": test, "operands": operands, "why": "So.", "source": "here"}
    assert concern == {**told, "mild": True}


@pytest.mark.parametrize(
    "text",
    [
        "[CUDA_X]\nmeaning = Nothing.\ntype = int\n",
        f"{ROW}colour = red\n",
        f"{ROW}[CUDA_Y: slows]\nwhen = any\nwhy = So.\nsource = here\n",
        f"{ROW}[CUDA_X: tires]\nwhen = any\nwhy = So.\nsource = here\n",
        f"{ROW}[CUDA_X: slows]\nwhen = any\nsource = here\n",
    ],
    ids=["no source", "unknown key", "concern of no variable", "unknown kind", "concern without a reason"],
)
def test_a_row_that_is_none_is_refused_by_name(tmp_path, text):
    with pytest.raises(BadRowError, match=r"cuda\.ini \[CUDA_[XY]"):
        table(folder(tmp_path, cuda=text))
