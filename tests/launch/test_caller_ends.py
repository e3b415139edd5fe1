"""A caller that ends without stopping its forked processes, for example after a second Ctrl-C."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.ranks

ENDS = """
import os, sys
from pathlib import Path
from ddp_doctor.ranks import control_store
from ddp_doctor.ranks.forkserver import ForkServer

if __name__ == "__main__":
    server = ForkServer(Path(sys.argv[1]), dict(os.environ))
    server.start()
    server.wait_ready(float(sys.argv[2]))
    print(control_store.start(server, Path(sys.argv[1]), "127.0.0.1", 0).process.pid, flush=True)
    raise KeyboardInterrupt
"""


def test_exit_of_an_interrupted_caller_does_not_wait_for_forked_processes(tmp_path: Path):
    (tmp_path / "ends.py").write_text(ENDS)
    command = (sys.executable, tmp_path / "ends.py", tmp_path, str(LIMIT_S))

    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert "KeyboardInterrupt" in done.stderr
    wait_until(lambda: not Path(f"/proc/{int(done.stdout)}").exists())
