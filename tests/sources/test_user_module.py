"""Certain faults of --model, reported before the start without running the user's code."""

import re
from pathlib import Path

import pytest

from ddp_doctor.app import UsageError, running
from ddp_doctor.model.choices import Level
from ddp_doctor.model.recording import Options
from ddp_doctor.sources.user_module import problem
from ddp_doctor.starters.request import RunRequest

RAN = "raise SystemExit('imported')\n"
FILES = {
    "net.py": f"{RAN}def make(): ...\nclass Nets:\n    def small(self): ...\nother = make\n",
    "broken.py": f"{RAN}def make(:\n",
    "late.py": f"{RAN}def make(): ...\nreturn make\n",  # only a compiler finds it
    "latin.py": "# -*- coding: latin-1 -*-\nname = '\xe9'\ndef make(): ...\n",
    "star.py": "from net import *\n",
    "later.py": "globals()['make'] = print\n",
    "lazily.py": "def __getattr__(name): return print\n",
    "branch.py": "if True:\n    from net import other as make\n",
    "pack/__init__.py": f"{RAN}from .inner import build\n",
    "pack/inner.py": "build = make = print\n",
    "open/__init__.py": "__path__.append('/elsewhere')\n",
    "bare/inner.py": "def make(): ...\n",  # a namespace package
    "empty.py": "",
}


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="latin-1" if name == "latin.py" else "utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nosuch:make", "found no module 'nosuch' in .* or on the Python path"),
        ("nosuch.deeper:make", "found no module 'nosuch' in"),
        ("net.deeper:make", "found no module 'net.deeper' in"),
        ("pack.nosuch:make", "found no module 'pack.nosuch' in"),
        ("bare.nosuch:make", "found no module 'bare.nosuch' in"),
        ("Net:make", "found no module 'Net' in"),
        ("net:nosuch", r"net.py has no function 'nosuch'$"),
        ("net:mak", r"net.py has no function 'mak'; did you mean 'make'\?$"),
        ("net:Net.small", r"net.py has no function 'Net'; did you mean 'Nets'\?$"),
        ("empty:make", r"empty.py has no function 'make'$"),
        ("pack:make", r"__init__.py has no function 'make'$"),
        ("broken:make", r"broken.py:2 is not valid in Python 3\.\d+\.\d+: "),
        ("late:make", r"late.py:3 is not valid in Python .*: 'return' outside function"),
    ],
)
def test_model_that_no_rank_can_use_is_reported_before_the_start(model: str, words: str):
    assert re.search(words, problem(model) or "")
    with pytest.raises(UsageError, match=f"cannot use --model {re.escape(model)}: .*{words}"):
        running.run(RunRequest(Options(model=model, level=Level.QUICK), {}))


@pytest.mark.parametrize(
    "model",
    ["net:make", "net:other", "net:Nets.small", "net:Nets.nosuch", "latin:make", "star:make", "later:make",
     "lazily:make", "branch:make", "pack:build", "pack:inner.make", "pack.inner:make", "open.nosuch:make",
     "bare.inner:make", "json:dumps", "math:sqrt"],
)  # fmt: skip
def test_faults_that_only_an_import_shows_are_left_to_the_ranks(model: str):
    assert problem(model) is None
