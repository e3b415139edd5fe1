import json
import os
import resource
import sys
import textwrap
import time
from typing import Any

import pytest

from ddp_doctor.model.context import Context
from ddp_doctor.sources import machine
from ddp_doctor.sources.machine import LiveContext
from tests.lab.processes import PATIENCE_S, to_its_end


def context(**options: Any) -> LiveContext:
    return LiveContext({"PATH": "/usr/bin:/bin"}, time.monotonic() + 60, **options)


def test_it_is_what_probes_are_promised():
    promised: Context = context()
    assert promised.cpus() == len(os.sched_getaffinity(0))
    assert promised.world.nproc_per_node == 1


@pytest.mark.serial
def test_a_command_is_killed_before_the_deadline_of_the_probe():
    live = LiveContext({}, time.monotonic() + machine.MARGIN_S + 0.3)
    result = live.run(["sleep", "30"], timeout_s=20)
    assert result.status == "timed_out"
    assert live.clock() < live.deadline


def test_a_shorter_time_limit_of_the_command_counts():
    began = time.monotonic()
    assert context().run(["sleep", "1000"], timeout_s=0.2).status == "timed_out"
    assert time.monotonic() - began < PATIENCE_S


def test_commands_get_the_job_environment_not_the_process_one(monkeypatch):
    monkeypatch.setenv("LEAKED", "1")
    assert "LEAKED" not in context().run(["env"]).stdout


def test_limits_are_soft_limits_and_none_is_unlimited():
    live = context()
    assert live.limit("NOFILE") == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    expected = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    assert live.limit("FSIZE") == (None if expected == resource.RLIM_INFINITY else expected)


def test_kept_texts_are_joined():
    live = context()
    assert live.raw is None
    live.keep("one")
    live.keep("two")
    assert live.raw == "one\ntwo"


def test_the_root_moves_files_only(tmp_path):
    (tmp_path / "x").write_text("moved")
    live = context(root=str(tmp_path))
    assert live.read("/x") == "moved"
    assert live.listdir("/") == ["x"]
    assert live.disk("/").total_bytes > 0
    with pytest.raises(OSError, match="Invalid argument"):
        live.readlink("/x")
    assert live.run(["test", "-e", str(tmp_path / "x")]).ok


def test_a_helper_that_does_not_exist_fails_and_raises_nothing():
    assert not context().child("no_such_helper").ok


SCRIPT = """
    import os, sys
    from ddp_doctor.sources import machine
    machine.__file__ = sys.argv[1]
    live = machine.LiveContext({}, machine.time.monotonic() + 60)
    result = live.child("flags", "argument")
    print(result.stdout, result.stderr)
"""


@pytest.mark.parametrize("isolated", [0, 1])
def test_a_helper_is_isolated_exactly_where_the_doctor_is(tmp_path, isolated):
    helper = tmp_path / "child_flags.py"
    helper.write_text("import json, sys; print(json.dumps([sys.flags.isolated, sys.argv[1:], sys.executable]))")
    flags = ["-I"] if isolated else []
    argv = (sys.executable, *flags, "-c", textwrap.dedent(SCRIPT), str(tmp_path / "machine.py"))
    done = to_its_end(argv, check=True)
    assert json.loads(done.stdout) == [isolated, ["argument"], sys.executable]
