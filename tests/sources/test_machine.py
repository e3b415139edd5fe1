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
from tests.lab.processes import to_its_end


def context(**options: Any) -> LiveContext:
    return LiveContext({"PATH": "/usr/bin:/bin"}, time.monotonic() + 60, **options)


def test_live_context_implements_the_protocol_of_probes():
    promised: Context = context()
    assert promised.cpus() == len(os.sched_getaffinity(0))
    assert promised.world.nproc_per_node == 1


@pytest.mark.parametrize(("timeout_s", "expected_s"), [(None, 29.5), (100.0, 29.5), (20.0, 20.0)])
def test_command_limit_ends_before_the_deadline(monkeypatch, timeout_s, expected_s):
    limits: list[float] = []
    monkeypatch.setattr(machine, "run_command", lambda _argv, _env, limit_s: limits.append(limit_s))
    monkeypatch.setattr(LiveContext, "clock", lambda _self: 70.0)

    LiveContext({}, 100.0).run(["true"], timeout_s)

    assert limits == [expected_s]


def test_commands_get_the_job_environment_not_the_process_one(monkeypatch):
    monkeypatch.setenv("LEAKED", "1")
    assert "LEAKED" not in context().run(["env"]).stdout


def test_limits_are_soft_limits_and_none_means_unlimited():
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


def test_root_applies_to_files_only(tmp_path):
    (tmp_path / "x").write_text("moved")
    live = context(root=str(tmp_path))
    assert live.read("/x") == "moved"
    assert live.listdir("/") == ["x"]
    assert live.disk("/").total_bytes > 0
    with pytest.raises(OSError, match="Invalid argument"):
        live.readlink("/x")
    assert live.run(["test", "-e", str(tmp_path / "x")]).ok


def test_missing_helper_fails_without_an_exception():
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
def test_helper_is_isolated_exactly_if_ddp_doctor_is(tmp_path, isolated):
    helper = tmp_path / "child_flags.py"
    helper.write_text("import json, sys; print(json.dumps([sys.flags.isolated, sys.argv[1:], sys.executable]))")
    flags = ["-I"] if isolated else []
    argv = (sys.executable, *flags, "-c", textwrap.dedent(SCRIPT), str(tmp_path / "machine.py"))
    done = to_its_end(argv, check=True)
    assert json.loads(done.stdout) == [isolated, ["argument"], sys.executable]
