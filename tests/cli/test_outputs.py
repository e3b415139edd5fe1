"""The destinations of outputs on one of several nodes."""

from pathlib import Path

import pytest

from ddp_doctor.cli.complete import forms_of_settings
from ddp_doctor.cli.outputs import OUTPUTS, Outputs, Results, paths_of_forms
from ddp_doctor.features import FEATURES
from ddp_doctor.features.lint.use_case import lint
from ddp_doctor.model.choices import Detail, OutputFormat, UsageError
from ddp_doctor.model.finding import Setting
from ddp_doctor.model.recording import Recording
from tests.render.reports import error, report, world


def test_a_path_may_hold_the_host_and_the_node_rank():
    outputs = Outputs({"json": "out-%h-%n.json", "env": "%n.env", "record": "-", "html": "%h.html"})

    assert outputs.at_node("node7", 3).paths == {
        "json": "out-node7-3.json",
        "env": "3.env",
        "record": "-",
        "html": "node7.html",
    }
    assert Outputs().at_node("node7", 3).paths == {}


@pytest.mark.parametrize("name", ["docker", "kubernetes", "torchrun"])
@pytest.mark.parametrize(("path", "has_value"), [("all.txt", False), ("%n.txt", True), ("%h.txt", True)])
def test_a_file_for_each_node_holds_the_values_of_that_node(tmp_path, name, path, has_value):
    own = [Setting(name="NCCL_SOCKET_IFNAME", value=f"eth{rank}", node=f"node{rank}") for rank in (0, 1)]
    given = report(error(*own), on=world("node0", "node1"))
    outputs = Outputs({name: str(tmp_path / path)}).at_node("node1", 1)

    assert outputs.write(Results(given, Recording(run_id="x", tool_version="1"))) == []
    (written,) = tmp_path.iterdir()
    lines = [line for line in written.read_text().splitlines() if not line.startswith("#")]
    assert any("eth1" in line for line in lines) == has_value
    assert not any("eth0" in line for line in lines)


def test_follower_writes_no_files_and_shows_its_text_on_stdout(capsys):
    outputs = Outputs({"json": "-", "record": "x"}, detail=Detail.VERDICT).without_files()

    print("words", file=outputs.words_to)
    assert outputs == Outputs(detail=Detail.VERDICT)
    assert capsys.readouterr().out == "words\n"


def test_every_output_of_the_table_can_be_written(tmp_path):
    """Renderers are imported when they are called, so no type checker notices a missing one."""
    of_machines = Results(report(error(), on=world("node0")), Recording(run_id="x", tool_version="1"))
    (tmp_path / "train.py").write_text("import torch\n")
    written = {name: str(tmp_path / f"of_lint.{name}") for name in FEATURES["lint"].outputs}

    assert lint([str(tmp_path / "train.py")], Outputs(written), quiet=True) == 0
    assert all(Path(path).stat().st_size for path in written.values())

    for output in OUTPUTS:
        if output.render is None:
            continue
        target = tmp_path / output.name
        problems = Outputs({output.name: str(target)}).write(of_machines)
        nothing = {
            "svg": ["cannot write --svg: there is no GPU matrix to draw"],
            "reproducer": ["cannot write --reproducer: the run was made without --collectives-of"],
        }
        assert problems == nothing.get(output.name, [])
        assert target.exists() == (not problems)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nowhere/out.json", "cannot write 'nowhere/out.json': No such file or directory"),
        ("/proc/%h.json", "cannot write '/proc/"),
        (".", "cannot write '.': it is a directory; add a file name"),
        ("file/out.json", "cannot write 'file/out.json': Not a directory"),
        ("x" * 300, "File name too long"),
        ("a\0b", r"cannot write 'a\\x00b'"),
    ],
)
def test_unwritable_output_is_refused_before_the_run(monkeypatch, tmp_path, target, sentence):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()

    with pytest.raises(UsageError, match=sentence):
        Outputs({"json": target}).refuse_unwritable()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("target", ["-", "/dev/null", "new.json", "%n/out.json", "old.json"])
def test_writable_outputs_are_tested_without_leaving_files(monkeypatch, tmp_path, target):
    monkeypatch.chdir(tmp_path)
    Path("old.json").write_text("old")

    Outputs({"json": target}).refuse_unwritable()

    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("paths", "form", "sentence"),
    [
        ({"env": "-", "docker": "-"}, OutputFormat.FULL, "only one output can go to stdout"),
        ({"good_nodes": "nodes", "bad_nodes": "nodes"}, OutputFormat.FULL, "two outputs would write to 'nodes"),
        ({"json": "-", "record": "-"}, OutputFormat.FULL, "only one output can go to stdout"),
        ({"json": "-"}, OutputFormat.JSONL, "--output-format jsonl already writes to stdout"),
    ],
)
def test_two_outputs_on_stdout_are_refused(paths, form, sentence):
    with pytest.raises(UsageError, match=sentence):
        Outputs(paths, form=form).refuse_unwritable()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("nccl.env",), "invalid --settings 'nccl.env': expected FORM:PATH, for example env:FILE"),
        (("",), "invalid --settings '': expected FORM:PATH, for example env:FILE"),
        (("k8s:x",), "docker, kubernetes or torchrun; did you mean 'kubernetes'?"),
        (("Docker:",), "did you mean 'docker'?"),
        (("torchrn:x",), "did you mean 'torchrun'?"),
        (("qqqq:x",), "unknown --settings form 'qqqq': expected env"),
        ((":x",), "unknown --settings form '': expected env"),
        (("json:x",), "unknown --settings form 'json': expected env"),
        (("env",), "--settings env has no path; give env:FILE, or env:- for stdout"),
        (("docker:",), "--settings docker has no path"),
        (("env:a", "env:b"), "--settings env is given twice"),
    ],
)
def test_invalid_form_of_settings_is_refused_with_the_valid_ones(given, sentence):
    with pytest.raises(UsageError) as refused:
        paths_of_forms(given)
    assert sentence in str(refused.value)


def test_each_form_of_settings_has_its_path_which_may_hold_colons():
    assert paths_of_forms(["env:-", "docker:a:b", "kubernetes:/x/%h.yaml"]) == {
        "env": "-",
        "docker": "a:b",
        "kubernetes": "/x/%h.yaml",
    }
    assert forms_of_settings("") == ["env:", "sbatch:", "docker:", "kubernetes:", "torchrun:"]
    assert (forms_of_settings("k"), forms_of_settings("env:x")) == (["kubernetes:"], [])


def test_a_folder_that_vanishes_during_the_run_is_one_sentence(tmp_path):
    outputs = Outputs({"json": str(tmp_path / "out" / "report.json")})
    (tmp_path / "out").mkdir()
    outputs.refuse_unwritable()
    (tmp_path / "out").rmdir()

    (problem,) = outputs.write(Results(report(), Recording(run_id="x")))

    assert problem == f"cannot write '{tmp_path}/out/report.json': No such file or directory"
