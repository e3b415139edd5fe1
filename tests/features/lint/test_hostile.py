"""Texts that are not training scripts: each is linted or refused with a reason and a line, in bounded time."""

import time

import pytest

from ddp_doctor.features.lint.linting import MOST_BYTES, lint_bytes, lint_text

HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
START = "dist.init_process_group('nccl')\n"
#: The slowest text needs a tenth of it.
LONGEST_CPU_S = 7.5

JUDGED = {
    "a form feed before the first line": f"\f{HEAD}\f{START}",
    "a byte-order mark": f"\ufeff{HEAD}",
    "lines that end as on Windows": HEAD.replace("\n", "\r\n"),
    "match": f"{HEAD}match 1:\n    case [a, *b] if a: model = DDP(a)\n    case _: model = DDP(1)\n",
    "walrus": f"{HEAD}while (n := f(n)) is not None: (m := DDP(n)).to('cuda')\n",
    "decorators": f"{HEAD}@a\n@b(1)\nclass C(D):\n    @p\n    def f(self): return self.f()\nC().f()\n",
    "async": f"{HEAD}async def f():\n    async with a as b:\n        async for c in d:\n            yield await e(c)\n",
    "names that lead in circles": f"{HEAD}a = b\n" + "a, b = b, a.c\n" * 500,
    "functions that call each other": f"{HEAD}def f(): g()\ndef g(): f()\nf()\n",
    "brackets in brackets": f"{HEAD}x = {'(' * 100}1{')' * 100}\n",
    "two hundred elif": f"{HEAD}if a: pass\n" + "elif b: dist.barrier()\n" * 200,
    "a thousand early exits": HEAD + "if rank: exit()\n" * 1000,
    "many wrapped models": HEAD + "model = DDP(model.to('cuda:0'))\n" * 1000,
    "many choices of a GPU": HEAD + START + "torch.cuda.set_device(0)\n" * 2500,
    "many settings": f"{HEAD}import os\n{START}" + "os.environ['MASTER_PORT'] = '1'\n" * 1500,
    "many comments that take back": HEAD + START + "torch.cuda.set_device(0)  # noqa\n" * 2500,
    "many backward passes": HEAD + "m = DDP(n)\nfor x in y:\n" + "  l = m(x)\n  l.backward()\n  print(l)\n" * 3000,
    "many decisions by the loss": HEAD
    + "m = DDP(n)\nfor x in y:\n"
    + "  l = m(x)\n  if l > 1: continue\n  l.backward()\n" * 1000,
    "many loss scalers": HEAD
    + START
    + "for x in y:\n"
    + "  s = torch.amp.GradScaler()\n  s.step(o)\n  s.update()\n" * 1000,
    "many definitions": HEAD + "def f(): f()\n" * 2500,
}
REFUSED = {
    "an assignment to a call": (f"{HEAD}f() = 1\n", 4, "does not parse"),
    "Python 2": (f"{HEAD}print 'hello'\n", 4, "does not parse"),
    "a null byte": (f"{HEAD}\0", 1, "null bytes"),
    "tabs against spaces": (f"{HEAD}if a:\n\tx = 1\n        y = 2\n", 6, "tabs"),
    "brackets without end": (f"{HEAD}{'(' * 100_000}", 4, "too many nested parentheses"),
    "a chain of attributes": (f"{HEAD}a{'.b' * 100_000}", 1, "nested too deeply"),
    "a chain of elif": (f"{HEAD}if a: pass\n" + "elif a: pass\n" * 20_000, 1, "nested too deeply"),
    "ten megabytes": (HEAD + "a = 1\n" * 1_700_000, 1, "larger than"),
}


@pytest.mark.fuzz
@pytest.mark.parametrize("name", JUDGED)
def test_unusual_script_is_checked_in_bounded_time(name: str):
    began = time.process_time()

    linted = lint_bytes("train.py", JUDGED[name].encode())

    assert linted.unread is None
    assert linted.failures == ()
    assert time.process_time() - began < LONGEST_CPU_S


@pytest.mark.parametrize("name", REFUSED)
def test_text_that_is_not_a_script_is_refused_with_a_reason_and_a_line(name: str):
    text, line, reason = REFUSED[name]

    linted = lint_bytes("train.py", text.encode())

    assert linted.unread is not None
    assert (linted.unread.path, linted.findings) == ("train.py", ())
    assert reason in linted.unread.reason
    # Python 3.10 and later releases place some of these elsewhere in the same statement
    assert linted.unread.line in (1, line - 1, line, line + 1)


def test_bytes_of_another_encoding_are_read_by_their_coding_line():
    text = f"# -*- coding: latin-1 -*-\n{HEAD}# \xe9\n"

    assert lint_bytes("train.py", text.encode("latin-1")).unread is None


@pytest.mark.parametrize(
    "data", [b"# caf\xe9\n", b"# -*- coding: klingon -*-\n", b"\xff\xfe\x00", b"x = '\xed\xa0\x80'"]
)
def test_bytes_that_are_not_text_are_refused(data: bytes):
    linted = lint_bytes("train.py", data)

    assert linted.unread is not None
    assert linted.unread.reason


def test_a_lone_surrogate_is_refused():
    linted = lint_text("train.py", f"{HEAD}x = '\ud800'\n")

    assert linted.unread is not None


def test_size_limit_is_far_above_real_scripts():
    assert lint_bytes("train.py", (HEAD + "# note\n" * 100_000).encode()).unread is None
    assert MOST_BYTES > 900_000
