"""An import of torch that does not end in its time: slow, or stuck?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
        pytest.param("import time; time.sleep(99)", 6.0, "False", id="one that waits is stuck"),
    ],
)
def test_an_import_that_does_not_end(torch: str, waits_s: float, moving: str, tmp_path: Path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(torch)
    (tmp_path / "run_folder").mkdir()

    done = subprocess.run(
        (sys.executable, "-c", SCRIPT, tmp_path / "run_folder", tmp_path, str(waits_s)),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    said, took_s, is_in_torch = done.stdout.split()
    assert (said, is_in_torch) == (moving, "True")
    assert float(took_s) >= (1.5 * waits_s if moving == "True" else waits_s)
