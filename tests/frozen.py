"""What the doctor says of all that the tests play, in one file; two such files are compared.

    python -m tests.frozen write before.json.xz
    python -m tests.frozen compare before.json.xz after.json.xz

A change that rearranges code and means to change nothing leaves this file as it was. It holds the report, the text
on the screen and the forms of the settings, of every recording, machine, planted fault, case of settings, sample of a
job's output, set of dumps and look at a running job; what `lint` says of its samples, `fleet` and `compare` of a
folder; and `explain` of every code and variable, and the help of every command.
"""

import json
import lzma
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from io import StringIO
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from ddp_doctor import app
from ddp_doctor.app import recordings
from ddp_doctor.app.baselines import compare
from ddp_doctor.app.fleet import fleet_outcome, read_fleet
from ddp_doctor.app.job_reading import read_job
from ddp_doctor.app.outcome import blank
from ddp_doctor.cli.explain import explain
from ddp_doctor.cli.main import app as cli
from ddp_doctor.cli.outputs import OUTPUTS, Outputs, Results
from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.engine.plan import Plan
from ddp_doctor.knowledge.gpu.xids import XIDS
from ddp_doctor.lint.linting import lint_bytes
from ddp_doctor.lint.render.text import show as show_lint
from ddp_doctor.lint.report import lint_report
from ddp_doctor.lint.rules import RULES as LINT_RULES
from ddp_doctor.model.choices import Detail, FailOn
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.render import terminal
from ddp_doctor.render.screen import console
from ddp_doctor.render.topology import report as topology
from ddp_doctor.settings.table import variables
from tests.app.test_fleet import made
from tests.engine.test_live_causes import FAR
from tests.engine.test_live_causes import SITUATIONS as LOOKS
from tests.engine.test_live_causes import recording as looks
from tests.job_logs.documents import SAMPLES
from tests.job_logs.dumps import DUMPS, as_json
from tests.lint.documents import OF_RULES, PUBLIC
from tests.machines.faults import FAULTS, Planted
from tests.machines.healthy import MACHINES
from tests.machines.whole import record
from tests.recordings import SITUATIONS, load
from tests.settings.cases import bad, clean

FORMS = [output.name for output in OUTPUTS if "topology" in output.commands and output.name not in ("json", "record")]
Answer = dict[str, str]
DATELESS = {"run_id": "run", "started_at": "2026-11-01T10:00:00Z"}
JUDGED_AT = {"finished_at": "2026-11-01T10:00:00Z"}


def of_recording(recording: Recording) -> Answer:
    """The report and all that is rendered of it."""
    outcome = app.judge(recording)
    report = topology.with_topology(outcome.report, recording)
    screen, matrices = StringIO(), StringIO()
    terminal.show(outcome.report, recording, console(screen, width=100), "FILE", Detail.ALL)
    topology.show(recording, console(matrices, width=100))
    answer = {
        "report": report.model_copy(update=JUDGED_AT).as_json(),
        "failed rules": repr(outcome.rule_failures),
        "screen": screen.getvalue(),
        "topology": matrices.getvalue(),
    }
    with tempfile.TemporaryDirectory() as folder:
        Outputs({form: f"{folder}/{form}" for form in FORMS}).write(Results(outcome.report, recording))
        return answer | {file.name: file.read_text() for file in sorted(Path(folder).iterdir())}


def of_script(name: str, text: str) -> Answer:
    """What `lint` says of one script."""
    linted = lint_bytes(name, text.encode())
    report = lint_report([linted], FailOn.ERROR, datetime.now(timezone.utc))
    fixed = report.model_copy(update={"run_id": "", "started_at": "", "duration_s": 0.0, "checks": (), **JUDGED_AT})
    screen = StringIO()
    show_lint(fixed, console(screen, width=100))
    return {"report": fixed.as_json(), "failed rules": repr(linted.failures), "screen": screen.getvalue()}


def of_files(files: Mapping[str, bytes]) -> Answer:
    """What `logs` says of what a job left."""
    with _folder(files):
        recording = blank(Options(command="logs"), Plan(()))
        return of_recording(dateless(recording.model_copy(update={"readings": read_job([*files])})))


def of_runs(command: str, files: Mapping[str, bytes]) -> Answer:
    """What `fleet` or `compare` says of reports."""
    with _folder(files):
        outcome = (
            compare(*files) if command == "compare" else fleet_outcome(read_fleet([*files], lambda _text: None), 0.0)
        )
    report = outcome.report.model_copy(update=DATELESS | JUDGED_AT | {"duration_s": 0.0})
    screen = StringIO()
    terminal.show(report, outcome.recording, console(screen, width=100), "FILE", Detail.ALL)
    return {"report": report.as_json(), "screen": screen.getvalue()}


@contextmanager
def _folder(files: Mapping[str, bytes]) -> Iterator[None]:
    """A new working directory with these files, so that their names are always the same."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for name, content in files.items():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_bytes(content)
                os.utime(name, (0, 0))
            yield
        finally:
            os.chdir(home)


def dateless(recording: Recording) -> Recording:
    """A recording that was made just now, without its name and date."""
    return recording.model_copy(update=DATELESS)


def untimed(recording: Recording) -> Recording:
    """A live recording without when and for how long was looked."""
    still = {"started_at": 0.0, "duration_s": 0.0}
    readings = [one.model_copy(update={**still, "fact": _untimed(one.fact)}) for one in recording.readings]
    return recording.model_copy(update={"readings": tuple(readings)})


def _untimed(fact: Any) -> Any:
    """With whole seconds where a probe of a machine that hangs says how long it waited."""
    if isinstance(fact, dict):
        waited = {key: round(fact[key]) for key in ("nvml_elapsed_s", "watched_s") if key in fact}
        return {key: _untimed(value) for key, value in fact.items()} | waited
    return [_untimed(value) for value in fact] if isinstance(fact, list) else fact


def answers() -> Iterator[tuple[str, Answer]]:
    """Everything by name."""
    for situation in SITUATIONS:
        yield f"recording {situation}", of_recording(load(situation))
    for machine in (*MACHINES, *FAULTS):
        played = record(machine.nodes()) if isinstance(machine, Planted) else record(machine.build(), machine.command)
        yield f"machine {machine.name}", of_recording(untimed(played))
    for kind, cases in (("bad", bad()), ("clean", clean())):
        for number, case in enumerate(cases):
            yield f"setting {kind} {number} {case.name}", of_recording(untimed(case.recording()))
    for sample in (*OF_RULES, *PUBLIC):
        yield f"sample {sample}", of_script("train.py", sample.text)
    for name, answer in _jobs():
        yield name, answer
    for name in texts_to_explain():
        yield f"explain {name}", {"page": explain(name)}
    for name in sorted(get_command(cli).commands):  # type: ignore[attr-defined]
        yield f"help {name}", {"screen": CliRunner().invoke(cli, [name, "--help"]).output}


def _jobs() -> Iterator[tuple[str, Answer]]:
    """Jobs that ended, that run, and runs beside each other."""
    for number, sample in enumerate(SAMPLES):
        yield f"output {number} {sample}", of_files({name: text.encode() for name, text in sample.files.items()})
    for situation, dumps in DUMPS.items():
        yield f"dumps {situation}", of_files({f"dumps/rank{rank}.json": as_json(dump) for rank, dump in dumps.items()})
    for situation, (ranks, about, *_) in LOOKS.items():
        yield f"looks {situation}", of_recording(dateless(looks(*ranks, **about)))
    for situation, (several, *_) in FAR.items():
        yield f"looks {situation}", of_recording(dateless(several))
    yield "looks hung-loader", of_recording(recordings.load_recording(Path("tests/attach/hung-loader.json")))
    runs = [made(host, day) for host in ("a", "b", "c") for day in range(1, 5)]
    runs += [made("d", day, "unhealthy" if day % 2 else "healthy") for day in range(1, 7)]
    runs += [made("e", 5, speed=0.6), made("f", 5, traits={"driver": "470.1"})]
    files = {f"{run['run_id']}.json": json.dumps(run).encode() for run in runs}
    yield "fleet", of_runs("fleet", {**files, "torn.json": b'{"tool": "ddp-doc', "null.json": b"null"})
    for earlier, later in (("a-1", "a-2"), ("a-1", "e-5"), ("a-1", "f-5"), ("d-1", "a-1")):
        pair = {f"{name}.json": files[f"{name}.json"] for name in (earlier, later)}
        yield f"compare {earlier} {later}", of_runs("compare", pair)


def texts_to_explain() -> list[str]:
    """Every code and variable, and texts of errors."""
    codes = [rule.code for rule in (*all_rules(), *LINT_RULES)]
    return [*codes, *variables(), *sorted({sample.cause for sample in SAMPLES}), *(f"Xid {xid}" for xid in XIDS)]


def differences(old: dict[str, Answer], new: dict[str, Answer]) -> Iterator[tuple[str, str]]:
    """The kind of a difference and what it is, for people."""
    for name in sorted(old.keys() | new.keys()):
        if name not in new or name not in old:
            yield "gone" if name not in new else "added", name
            continue
        for part in sorted(old[name].keys() | new[name].keys()):
            before, after = old[name].get(part, ""), new[name].get(part, "")
            if part == "report":
                yield from _in_json(name, json.loads(before or "{}"), json.loads(after or "{}"))
            elif before != after:
                yield part, name


def _in_json(name: str, old: object, new: object, where: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key in old and key in new:
                yield from _in_json(name, old[key], new[key], f"{where}.{key}")
            else:
                yield f"field {where}.{key} {'added' if key in new else 'gone'}", name
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            yield from _in_json(name, before, after, where)
    elif old != new:
        yield f"value of {where}", f"{name}: {str(old)[:200]!r} -> {str(new)[:200]!r}"


def main() -> int:
    """Write or compare; 1 where two files differ."""
    command, *paths = sys.argv[1:]
    if command == "write":
        text = json.dumps(dict(answers()), indent=0)
        Path(paths[0]).write_bytes(lzma.compress(text.encode(), preset=3))
        return 0
    old, new = (json.loads(lzma.decompress(Path(path).read_bytes())) for path in paths)
    found = list(differences(old, new))
    for kind, count in Counter(kind for kind, _ in found).most_common():
        examples = [what for found_kind, what in found if found_kind == kind]
        print(f"{count:5} {kind}", *examples[:3], sep="\n        ")
    print(f"{len(old)} and {len(new)} answers, {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
