"""The origin of a variable's value: ancestors simulated with files, and the current process."""

import os
import sys
from collections.abc import Mapping, Sequence

from ddp_doctor.facts.node.env_vars import Origin
from ddp_doctor.probing.setting_origins import setting_origins, stat_of
from tests.fakes import FakeContext
from tests.lab.processes import to_its_end

SCRIPT = """
import os, time
from ddp_doctor.probing.setting_origins import setting_origins
from ddp_doctor.sources.machine import LiveContext
print(setting_origins(LiveContext(dict(os.environ), time.monotonic() + 60)).model_dump_json())
"""


def machine(
    env: Mapping[str, str],
    ancestors: Sequence[tuple[int, str, Mapping[str, str] | None]],
    files: Mapping[str, str] | None = None,
) -> FakeContext:
    """``ancestors``: (pid, name, environ or None), the parent first."""
    pids = [pid for pid, _, _ in ancestors] + [0]
    read: dict[str, str | OSError] = {"/proc/self/stat": f"99 (python) R {pids[0]} 1 1"}
    for (pid, name, environ), parent in zip(ancestors, pids[1:], strict=True):
        read[f"/proc/{pid}/stat"] = f"{pid} ({name}) S {parent} 1 1"
        if environ is None:
            read[f"/proc/{pid}/environ"] = PermissionError(13, "Permission denied")
        else:
            read[f"/proc/{pid}/environ"] = "".join(f"{key}={value}\0" for key, value in environ.items())
    return FakeContext(env=env, files={**read, **(files or {})})


def origin(*ancestors: tuple[int, str, Mapping[str, str] | None]) -> Origin | None:
    return setting_origins(machine({"NCCL_DEBUG": "INFO"}, ancestors)).origins.get("NCCL_DEBUG")


HAS, HAS_NOT, OTHER = {"NCCL_DEBUG": "INFO"}, {"HOME": "/"}, {"NCCL_DEBUG": "WARN"}


def test_a_shell_that_was_started_without_it_set_it():
    assert origin((7, "bash", HAS_NOT), (6, "sshd", HAS)) == Origin(how="set", process="bash", pid=7)
    assert origin((7, "bash", HAS), (6, "torchrun", OTHER)) == Origin(how="set", process="torchrun", pid=6)


def test_a_process_of_another_user_may_have_set_it():
    assert origin((7, "bash", HAS), (6, "slurmstepd", None)) == Origin(how="given", process="slurmstepd", pid=6)


def test_the_first_process_of_a_container_was_started_with_it():
    assert origin((7, "bash", HAS), (1, "tini", HAS)) == Origin(how="first", process="tini", pid=1)


def test_process_chain_that_cannot_be_followed_gives_no_origin():
    context = machine({"NCCL_DEBUG": "INFO"}, [(7, "bash", HAS)])
    context.files = {**context.files, "/proc/7/stat": "7 (bash) S 6 1 1"}
    assert setting_origins(context).origins == {}
    assert setting_origins(FakeContext(env={"NCCL_DEBUG": "INFO"})).origins == {}


def test_a_ring_of_processes_ends():
    context = machine({"NCCL_DEBUG": "INFO"}, [(7, "bash", HAS)])
    context.files = {**context.files, "/proc/7/stat": "7 (bash) S 7 1 1"}
    assert setting_origins(context).origins == {}


def test_a_start_up_file_with_the_same_value_is_reported():
    files = {
        "/home/user/.bashrc": "# x\nexport NCCL_DEBUG=INFO NCCL_ALGO=Ring\nexport NCCL_PROTO=$P\n",
        "/etc/environment": "NCCL_DEBUG=INFO\n",
        "/etc/profile.d/nccl.sh": "export NCCL_P2P_LEVEL=SYS\n",
    }
    env = {"HOME": "/home/user", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Tree", "NCCL_PROTO": "$P", "NCCL_P2P_LEVEL": "SYS"}
    assert setting_origins(machine(env, [(7, "bash", HAS_NOT)], files)).files == {
        "NCCL_DEBUG": "/home/user/.bashrc:2",
        "NCCL_P2P_LEVEL": "/etc/profile.d/nccl.sh:1",
    }


def test_a_process_may_have_any_name():
    assert stat_of("12 (a) S 1 (b) R 7 12 12 0") == (12, "a) S 1 (b", 7)
    assert stat_of("12 (a") is None


def test_a_real_shell_that_exports_it_is_reported():
    env = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    argv = ("bash", "-c", 'export NCCL_DEBUG=INFO; "$@"; exit $?', "bash", sys.executable, "-c", SCRIPT)
    done = to_its_end(argv, {**env, "NCCL_ALGO": "Ring"}, check=True)
    assert '"NCCL_DEBUG":{"how":"set","process":"bash"' in done.stdout
    assert f'"pid":{os.getpid()}}}' in done.stdout.partition("NCCL_ALGO")[2]
