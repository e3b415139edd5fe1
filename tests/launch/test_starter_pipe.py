"""The starter pipe: the agent hears of hosts that failed and of Ctrl-C, and ends when its starter is gone."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.waiting import LIMIT_S

pytestmark = pytest.mark.ranks

AGENT = """
import os, signal, sys
from ddp_doctor.starters import starter_channel
def say(*words):  # whole, and also where a signal comes in the middle of another line
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
signal.signal(signal.SIGINT, lambda *_: say("SIGINT"))
signal.signal(signal.SIGTERM, lambda *_: (say("SIGTERM", pipe.not_started()), {end}))
starter_channel._LAST_S = float(os.environ.get("LAST_S", "30"))
env = dict(os.environ)
pipe = starter_channel.take(env)
is_handed_on = starter_channel.VARIABLE in env or starter_channel.VARIABLE in os.environ
say(pipe is not None, is_handed_on, sys.stdin.read() == "")
while True:
    signal.pause()
"""


def agent(end: str = "os._exit(7)", **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-c", AGENT.replace("{end}", end)),
        env={**os.environ, "DDP_DOCTOR_STARTER_PIPE": "1", **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_agent_ends_with_its_starter_and_knows_hosts_that_did_not_start():
    with agent() as process:
        assert said(process) == "True False True"  # its own stdin is empty: the line is not for children
        assert process.stdin is not None
        process.stdin.write(json.dumps({"host": "node2", "failed": "Permission denied"}) + "\n")
        process.stdin.write("not json\n[1]\n{}\n" + json.dumps({"host": "node3"}) + "\n")
        process.stdin.close()

        assert said(process) == "SIGTERM (NotStarted(hostname='node2', reason='Permission denied'),)"
        assert process.wait(LIMIT_S) == 7


def test_the_users_signal_reaches_the_agent_and_no_other_does():
    with agent() as process:
        said(process)
        assert process.stdin is not None
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT):
            process.stdin.write(json.dumps({"signal": int(number)}) + "\n")
        process.stdin.flush()

        assert said(process) == "SIGINT"
        process.stdin.close()
        assert process.wait(LIMIT_S) == 7


def test_an_agent_that_does_not_end_itself_is_ended():
    with agent("None", LAST_S="0.2") as process:
        said(process)
        assert process.stdin is not None
        process.stdin.close()

        assert process.wait(LIMIT_S) == -signal.SIGKILL


def test_stdin_is_not_read_without_a_starter():
    code = "import os; from ddp_doctor.starters.starter_channel import take; print(take(dict(os.environ)), input())"
    env = {name: value for name, value in os.environ.items() if name != "DDP_DOCTOR_STARTER_PIPE"}
    done = subprocess.run(
        (sys.executable, "-c", code), input="data", capture_output=True, text=True, check=True, env=env
    )

    assert done.stdout == "None data\n"
