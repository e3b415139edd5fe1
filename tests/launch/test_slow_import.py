"""The import of torch before ranks are forked: with or without DDP's modules; slow, or stuck if it does not end."""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.node_run.node import Session
from ddp_doctor.model.recording import Options
from ddp_doctor.ranks import preload
from ddp_doctor.starters.request import RunRequest
from tests.lab.processes import to_its_end

pytestmark = pytest.mark.ranks

SCRIPT = """
import sys
from pathlib import Path
from ddp_doctor.ranks.forkserver import ForkServer

server = ForkServer(Path(sys.argv[1]), {"PYTHONPATH": sys.argv[2]})
server.start()
said = server.wait_ready(float(sys.argv[3]))
server.stop()
print(said.moving, said.import_s, "torch/__init__.py" in said.stuck_at)
"""


@pytest.mark.parametrize(
    ("torch", "waits_s", "moving"),
    [
        pytest.param("while True: pass", 3.0, "True", id="one that computes is slow"),
        pytest.param(
            "import time\nwhile True: time.sleep(0.1); open('/proc/self/stat').read()",
            3.0,
            "True",
            id="one that reads is slow, however little processor time it gets",
        ),
        pytest.param("import signal; signal.pause()", 6.0, "False", id="one that waits is stuck"),
    ],
)
def test_an_import_that_does_not_end(torch: str, waits_s: float, moving: str, tmp_path: Path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(torch)
    (tmp_path / "run_folder").mkdir()

    argv = (sys.executable, "-c", SCRIPT, tmp_path / "run_folder", tmp_path, str(waits_s))
    done = to_its_end(argv, {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, check=True)

    said, took_s, is_in_torch = done.stdout.split()
    assert (said, is_in_torch) == (moving, "True")
    assert float(took_s) >= (1.5 * waits_s if moving == "True" else waits_s)


@pytest.mark.parametrize("ddp", [True, False])
def test_modules_of_ddp_are_imported_only_if_ranks_will_use_them(ddp: bool, monkeypatch):
    for name in ("torch", "torch.nn", "torch.nn.parallel"):  # and no torch._dynamo
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    monkeypatch.setattr("ddp_doctor.ranks.preload.gc", SimpleNamespace(disable=int, enable=int, freeze=int))

    error = preload._import_all(ddp=ddp)

    assert ("torch._dynamo" in (error or "")) is ddp


@pytest.mark.parametrize(
    ("checks", "ddp"), [(("allreduce", "p2p"), False), (("allreduce", "buffers"), True), ((), False)]
)
def test_ranks_use_ddp_if_a_check_of_it_is_planned(checks: tuple[str, ...], ddp: bool):
    told: list[bool] = []
    with Session(RunRequest(Options(), {})) as session:
        session.server = SimpleNamespace(start=lambda *, ddp: told.append(ddp), stop=int)  # type: ignore[assignment]
        session.warm_up([check for check in CHECKS if check.id in checks])

    assert told == [ddp]
