"""How a command shows messages of agents on other nodes."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.app.folders import save_recording
from ddp_doctor.cli import commands, given, run
from ddp_doctor.cli.given import ignored
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.cli.run_options import RunOptions
from ddp_doctor.model.choices import UsageError
from ddp_doctor.model.job_collectives import JobCollectives
from ddp_doctor.model.recording import Leaf, Options
from ddp_doctor.starters.fanout import Ended
from ddp_doctor.starters.start_all_nodes import StartedNodes
from ddp_doctor.starters.starter_channel import AgentState
from ddp_doctor.wording.run_options import typed
from tests.recordings import load, path_of


@pytest.mark.parametrize("recording", ["no JSON", "[]", '{"readings": [{}]}'])
def test_a_recording_that_cannot_be_read_is_one_sentence(recording, capsys):
    ended = Ended({0: AgentState(has_answered=True, recording=recording)})
    here = StartedNodes((), ("node0", "node1"), ("node0", 29400), "ssh")

    assert run._outcome_of_agents(ended, here, Options()) is None
    assert "cannot read the agents' recordings" in capsys.readouterr().err


def test_topology_of_other_hosts_is_refused_and_missing_hosts_are_reported(capsys):
    options = Options(isolate=True, topology="topology.conf", leaves=(Leaf(name="leaf1", hosts=("node1", "node2")),))

    with pytest.raises(UsageError, match=r"topology.conf' does not list any of these hosts: other1 and other2"):
        run._tell_of_topology(options, ["other1", "other2"])
    run._tell_of_topology(options, ["node1", "node2.example.org", "node3"])

    assert "topology.conf' does not list node3; assuming they share no switch" in capsys.readouterr().err


def test_slurm_job_uses_readable_slurm_topology(tmp_path, monkeypatch):
    def leaves() -> Any:
        return given.of_run(RunOptions(isolate=True), is_reproducer_written=False).leaves

    (tmp_path / "topology.conf").write_text("SwitchName=leaf1 Nodes=node[1-2]\n")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert leaves() == ()

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert [leaf.name for leaf in leaves()] == ["leaf1"]
    (tmp_path / "topology.yaml").write_text("- topology: a\n  flat: true\n")  # SLURM prefers this file
    assert leaves() == ()


PAIR = "topology/classic-two-socket-with-recorded-facts"  # DD401


@pytest.fixture
def kept(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    saved = [
        save_recording(
            load(situation).model_copy(update={"run_id": f"2026010{day}T030405Z-0a1b2c"}), tmp_path / "ddp-doctor"
        )
        for day, situation in enumerate((PAIR, "gpus/one-lost", "host/two-ranks-on-two-cpus"), 1)
    ]
    newer = Path(saved[1] or "")
    newer.write_text('{"schema_version": "9.0", "run_id": "x"}')
    return [str(Path(path or "").parent) for path in saved]


@pytest.mark.parametrize(("fail_on", "code"), [("error", 0), ("warning", 1)])
def test_env_fails_at_the_requested_severity(asked, tmp_path, fail_on, code):
    (tmp_path / "job.sh").write_text("#!/bin/bash\nexport NCCL_IB_DISABLE=true\n")

    assert asked("env", "--from", str(tmp_path / "job.sh"), "--fail-on", fail_on).returncode == code


def test_the_runs_that_were_kept_are_listed_with_verdict_and_folder(kept, capsys):
    assert commands.replay(None, Outputs()) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2026-01-15 10:00:00")
    assert " run      Unhealthy: GPUs on l4node stall" in lines[0]
    assert lines[1] == f"    {kept[0]}"
    assert "was written by a newer ddp-doctor" in lines[2]
    assert "Healthy" in lines[3]
    assert lines[4] == f"    {kept[2]}"


def test_a_run_is_replayed_by_its_folder_and_the_newest_by_last(kept, capsys):
    assert commands.replay(Path(kept[0]), Outputs()) == 1
    assert commands.replay(None, Outputs(), last=True) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("files", "last", "sentence"),
    [
        ((), False, "found no recording in"),
        (
            ("a.json", "b.json", "c.json.gz", "d.json"),
            False,
            "has 4 files that may be recordings (a.json, b.json, c.json.gz, ...); name one",
        ),
        (None, False, "no recording given; add its path, or --last"),
        (("a.json",), True, "are mutually exclusive; give one of them"),
        (None, True, "no recording is kept yet"),
    ],
)
def test_replay_of_no_recording_or_of_several_is_one_sentence(monkeypatch, tmp_path, files, last, sentence):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    for name in files or ():
        (tmp_path / name).touch()

    with pytest.raises(UsageError, match=sentence.replace("(", "[(]").replace(")", "[)]")):
        commands.replay(None if files is None else tmp_path, Outputs({"json": "-"}), last=last)


def test_listing_without_runs_is_one_sentence_and_creates_no_directory(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))

    assert commands.replay(None, Outputs()) == 0
    assert capsys.readouterr().out.startswith("no recording is kept yet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ignore", "code", "words"),
    [
        (("DD401",), 0, "Healthy: 1 check passed on this node. Ignored: DD401."),
        (("DD4", "DD9"), 0, "Healthy: 1 check passed on this node. Ignored: DD401."),
        (("DD402",), 1, "Unhealthy: GPUs on l4node stall"),
    ],
)
def test_ignored_rule_is_not_applied_and_the_verdict_names_its_finding(capsys, ignore, code, words):
    assert commands.replay(path_of(PAIR), Outputs(), ignore=ignore) == code
    assert words in capsys.readouterr().out


def test_unsure_verdict_lists_ignored_rules(capsys):
    assert commands.replay(path_of("hang/gloo-interface-does-not-exist"), Outputs(), ignore=("DD6",)) == 3
    assert ". Ignored: DD617." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [(["DD305,XX"], "unknown rule 'XX'"), (["DDL1"], "unknown rule 'DDL1'"), (["DD"], "excludes every rule")],
)
def test_a_code_that_cannot_be_ignored_is_one_sentence(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        ignored(given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(model="net:make", from_trace="trace.json"), "--model|net:make|--from-trace|trace.json"),
        (Options(model="net:make", compile=True), "--model|net:make|--compile"),
        (Options(replay=JobCollectives(path="dumps/", source="", groups=(), ranks=())), "--collectives-of|dumps/"),
        (Options(ignore=ignored(["dd305, DD4", "DD51"])), "--ignore|DD305|--ignore|DD4|--ignore|DD51"),
    ],
)
def test_options_of_the_head_are_typed_on_all_nodes(options, words):
    assert "|".join(typed(options)).endswith(words)


@pytest.mark.parametrize(
    "asked", [{"collective": ["gather"]}, {"min_busbw": ["gather:1M=1GB/s"]}, {"collective": ["gather"], "only": None}]
)
def test_collective_options_select_their_check(asked: dict[str, Any]):
    typed = RunOptions(**{"only": ["p2p"], **asked})
    only = given.of_run(typed, is_reproducer_written=False).only
    assert only == (("p2p", "collectives") if typed.only else ())
