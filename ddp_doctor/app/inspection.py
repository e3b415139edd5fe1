"""The use cases without ranks: the prolog, a topology or settings, from this machine or from a text."""

import time
from collections.abc import Mapping
from dataclasses import replace

from ddp_doctor.app.outcome import Outcome, Progress, blank, judge
from ddp_doctor.checks import checks_of, read_pasted
from ddp_doctor.engine.collect import collect, with_node_facts
from ddp_doctor.engine.plan import Plan, make_plan
from ddp_doctor.facts.node.env_vars import EnvVars, SettingOrigins, SettingText, Unchecked
from ddp_doctor.knowledge import launchers
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Command, Status, Where
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import NotRun, Options, Recording
from ddp_doctor.parse.redact import open_and_withheld
from ddp_doctor.probing.setting_origins import setting_origins
from ddp_doctor.settings.files import ReadFile, read_none
from ddp_doctor.settings.in_force import by_branch, with_settings
from ddp_doctor.settings.table import never_read
from ddp_doctor.settings.text.setting_text import NoSettings, read_setting_text
from ddp_doctor.starters.request import RunRequest

#: A dead name server would cost each job its two seconds.
_NOT_IN_PROLOG = ("interfaces",)


def prolog(env: Mapping[str, str], options: Options, progress: Progress) -> Outcome:
    """Run the checks that need no other node and no torch, in about a second."""
    plan = make_plan(options, _of_node(options))
    not_run = [NotRun(check=check.id, reason="needs two nodes") for check in plan.checks if check.id in _NOT_IN_PROLOG]
    checks = tuple(check for check in plan.checks if check.id not in _NOT_IN_PROLOG)
    plan = Plan(checks, (*plan.not_run, *not_run))
    started = time.monotonic()
    # A prolog does not run as the job's user, and a home directory on a network may hang.
    mine = {name: value for name, value in env.items() if name != "HOME"}
    recording = with_node_facts(blank(options, plan, env), plan, RunRequest(options, mine, progress=progress))
    return judge(recording.model_copy(update={"duration_s": time.monotonic() - started}))


def _of_node(options: Options) -> list[Check]:
    return [check for check in checks_of(Command(options.command)) if check.where is Where.NODE]


def read_topology(text: str, ignore: tuple[str, ...] = ()) -> Outcome:
    """Evaluate a pasted topology; text that cannot be parsed gives a finding and an unsure verdict."""
    return judge(blank(Options(command=Command.TOPOLOGY, ignore=ignore), readings=read_pasted(text)))


def live_topology(env: Mapping[str, str], progress: Progress, ignore: tuple[str, ...] = ()) -> Outcome:
    """Read the topology of this machine, and the facts that decide about P2P on it."""
    options = Options(command=Command.TOPOLOGY, only=("topology",), ignore=ignore)
    plan = make_plan(options, [check for check in _of_node(options) if check.id == "topology"])
    return judge(with_node_facts(blank(options, plan, env), plan, RunRequest(options, env, progress=progress)))


_ENV = Options(command=Command.ENV)
#: Checks to run: the settings, the NCCL that reads them, and the interfaces and devices that they may name.
_LOOKED_AT = ("env_vars", "software", "nccl", "interfaces", "rdma")
_IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"

_ORIGINS = Check(
    id="env_vars", title="Environment variables", where=Where.NODE, probe=setting_origins, facts=(SettingOrigins,)
)


def live_settings(env: Mapping[str, str], asked: Options = _ENV) -> Outcome:
    """Evaluate the settings in force in this process, without torch and without a GPU."""
    from ddp_doctor.sources.machine import LiveContext

    started = time.monotonic()
    options = asked.model_copy(update={"only": _LOOKED_AT})
    plan = Plan(make_plan(options, _of_node(options)).checks)
    recording = with_node_facts(blank(options, plan, env), plan, RunRequest(options, env))
    origins = collect((_ORIGINS,), lambda deadline: LiveContext(env, deadline), lambda _: None)
    readings = (*recording.readings, *origins)
    duration_s = time.monotonic() - started
    return judge_settings(recording.model_copy(update={"readings": readings, "duration_s": duration_s}))


def read_settings(text: str, options: Options = _ENV, read_file: ReadFile = read_none) -> Outcome:
    """Evaluate the settings and launches of a text: a saved environment, a job script or a manifest.

    ``read_file`` returns the text of a script that the text runs, by the name in it.
    """
    try:
        found = read_setting_text(text, (*launchers.OTHERS, _IN_KUBERNETES), read_file)
        readings = [fact.collected("env_vars") for fact in (_as_environment(found), found)]
        if found.unchecked:
            readings.append(_unchecked(found.unchecked))
    except NoSettings as why:
        readings = [Reading(check="env_vars", status=Status.ABSENT, reason=f"the input {why}")]
    return judge_settings(blank(options, readings=tuple(readings)))


def _unchecked(lines: tuple[Unchecked, ...]) -> Reading:
    """Return why there is no verdict: lines that start ranks and were not understood."""
    first, *others = lines
    more = f", and {len(others)} more" if others else ""
    reason = f"the launch line was not checked: {first.place}, `{first.quote}` ({first.reason}){more}"
    return Reading(check="env_vars", status=Status.FAILED, reason=reason)


def _as_environment(found: SettingText) -> EnvVars:
    """Return the environment that a job would get from the text.

    Values that only a shell knows are omitted and so not evaluated, unless no library reads the name: that is known for
    any value.
    """
    several = {name for name, all_written in found.possible().items() if by_branch(all_written)}
    settled = {name: setting for name, setting in found.in_force().items() if name not in several}
    known = {
        name: setting.value
        for name, setting in settled.items()
        if setting.value is not None and (not setting.depends_on or name in never_read())
    }
    had = known if found.form == "environment" else {}
    return EnvVars(
        variables=open_and_withheld(known)[0],
        withheld=tuple(sorted(name for name, setting in settled.items() if setting.value is None)),
        launcher=launchers.launcher_of(had),
        in_kubernetes=_IN_KUBERNETES in had,
        is_written=found.form != "environment",
    )


def judge_settings(recording: Recording) -> Outcome:
    """Return the findings, and a report with the settings in force."""
    outcome = judge(recording)
    return replace(outcome, report=with_settings(outcome.report, recording))
