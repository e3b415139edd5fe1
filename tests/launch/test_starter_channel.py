"""Messages of agents to the command that started them: whole lines, whatever is printed between them."""

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.starters import starter_channel
from ddp_doctor.starters.starter_channel import AgentState, Message, in_pieces, read, written

AGENT = """
import os, sys
from ddp_doctor.starters.starter_channel import StarterChannel
wire = StarterChannel(3)
wire.send("hello")
print("a library greets")
os.write(1, b"a driver, too\\n")
wire.send("progress", sys.argv[1])
wire.send_recording(sys.argv[2] * 100)
wire.send("done", "1")
"""


def spoken(progress: str, recording: str = "{}") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run((sys.executable, "-c", AGENT, progress, recording), check=True, capture_output=True)


def test_agent_is_heard_and_other_output_goes_to_stderr():
    done = spoken("importing torch")
    agent = AgentState()
    messages = [read(line) for line in done.stdout.splitlines()]
    for message in messages:
        assert message is not None
        agent.take(message)

    assert messages[0] == Message(3, "hello", "")
    assert messages[1] == Message(3, "progress", "importing torch")
    assert (agent.has_answered, agent.recording, agent.code) == (True, "{}" * 100, 1)
    assert sorted(done.stderr.splitlines()) == [b"a driver, too", b"a library greets"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=3000))
def test_any_text_is_one_line_that_srun_does_not_break(text):
    line = written(65_535, "recording", text)
    message = read(line)

    assert len(line) <= 1024
    assert line.count(b"\n") == 1
    assert message is not None
    assert text.startswith(message.text)
    assert message.text == text or len(line) > 500


def test_long_recording_is_sent_in_pieces_and_arrives():
    text = os.urandom(40_000).hex()
    agent = AgentState()
    for piece in in_pieces(text):
        message = read(written(0, "recording", piece))
        assert message is not None
        agent.take(message)

    assert len(in_pieces(text)) > 50
    assert agent.recording == text


def test_broken_recording_is_ignored():
    agent = AgentState()
    agent.take(Message(0, "recording", "0 bm90IHBhY2tlZA=="))
    agent.take(Message(0, "recording", "0 \N{SNOWMAN}"))
    agent.take(Message(0, "done", "soon"))

    assert (agent.recording, agent.code) == (None, None)


def _state(*pieces: str) -> AgentState:
    agent = AgentState()
    for piece in pieces:
        agent.take(Message(0, "recording", piece))
    return agent


def test_pieces_out_of_order_are_not_a_recording():
    first, second, third = in_pieces(os.urandom(1000).hex())

    assert _state(second, third).recording is None
    assert _state(first, third).recording is None
    assert _state(first, second, second, third).recording is None
    assert _state(first, "x " + second, third).recording is None
    assert _state("5 broken off", first, second, third).recording is not None


def test_pieces_without_an_end_are_not_kept(monkeypatch: Any):
    monkeypatch.setattr(starter_channel, "_MOST_PIECES", 10)
    agent = AgentState()
    for left in range(10_000, 9_000, -1):
        agent.take(Message(0, "recording", f"{left} {'x' * 600}"))

    assert sum(map(len, agent._pieces)) == 0


def test_recording_that_unpacks_above_the_limit_is_refused(monkeypatch: Any):
    monkeypatch.setattr(starter_channel, "_MOST_BYTES", 10_000)
    agent = AgentState()
    for piece in in_pieces(" " * 20_000):
        agent.take(Message(0, "recording", piece))

    assert agent.recording is None


@pytest.mark.parametrize("text", ["-1", "256", "1" * 800, "", "1.0", "\N{SUPERSCRIPT TWO}"])
def test_invalid_exit_code_is_ignored(text: str):
    agent = AgentState()
    agent.take(Message(0, "done", text))

    assert agent.code is None


@given(st.binary(max_size=200))
def test_invalid_message_is_ignored(line):
    assert read(b"::ddp-doctor " + line) is None or line.strip()[:1].isdigit()


def test_foreign_lines_are_not_messages():
    for line in (b"", b"::ddp-doctor", b'::ddp-doctor x hello ""', b'::ddp-doctor 1 hello "', b"Welcome to node1"):
        assert read(line) is None
