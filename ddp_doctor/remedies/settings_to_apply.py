"""The settings of a report to apply, whatever form they are pasted in.

At most one fix of each finding is applied: the first that was proved, or else the first that is certain. A fix is
certain if it is for an error, or unsets a leftover variable. A disproved fix is not listed. The others are candidates,
because they could harm a healthy job. If the fixes of two findings contradict each other, the proved one is applied, or
otherwise the fix of the earlier finding. The other one is shown as a conflict.
"""

import re
from dataclasses import dataclass, replace

from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding, Proof, Remedy, Setting
from ddp_doctor.model.recording import World
from ddp_doctor.model.report import Report
from ddp_doctor.remedies.values_by_host import Branch, Unclear, branches, namesakes, why_not
from ddp_doctor.settings.trials import OF_LAUNCHER
from ddp_doctor.wording.proofs import NOT_ITSELF

_CONFLICT = "conflict, not applied"
#: ``--ulimit=memlock=-1``
_OPTION = re.compile(r"--[a-z][a-z-]*(=[A-Za-z0-9_./:,=-]+)?")
#: docker accepts one of any other option. --shm-size is for the segment that --ipc=host does not use.
_SEVERAL = ("--cap-add", "--device", "--ulimit")
_SAME_MATTER = {"--ipc": "--shm-size"}


@dataclass(frozen=True)
class Variable:
    """A variable as one fix sets it, with the text of its comment."""

    code: str
    because: str  # reason, measurements and undo
    name: str
    branches: tuple[Branch, ...] = ()  # empty: it cannot be pasted at all
    not_applied: str = ""  # why it is only shown
    namesakes: frozenset[str] = frozenset()

    @property
    def everywhere(self) -> Branch | None:
        """The value for all hosts, or for hosts without a separate one."""
        return next((branch for branch in self.branches if not branch.hosts), None)

    @property
    def per_host(self) -> tuple[Branch, ...]:
        """The values of named hosts."""
        return tuple(branch for branch in self.branches if branch.hosts)

    @property
    def sets(self) -> bool:
        """Return True if any host gets a value."""
        return any(branch.value is not None for branch in self.branches)

    def on(self, host: str) -> "Variable | None":
        """Return the variable as one host needs it, or None if it does not."""
        own = next((branch for branch in self.branches if host in branch.hosts), self.everywhere)
        return replace(self, branches=(Branch(own.value),)) if own else None


@dataclass(frozen=True)
class ContainerOption:
    """An option of ``docker run`` as one fix sets it."""

    because: str
    option: str
    not_applied: str = ""


@dataclass(frozen=True)
class SettingsToApply:
    """Everything in a report that can be applied, in its order."""

    source: str  # the report
    variables: tuple[Variable, ...] = ()
    options: tuple[ContainerOption, ...] = ()

    def on(self, host: str) -> "SettingsToApply":
        """Return the settings that one host needs."""
        found = (variable.on(host) for variable in self.variables)
        return replace(self, variables=tuple(variable for variable in found if variable))


def settings_to_apply(report: Report) -> SettingsToApply:
    """Return the settings of a report's fixes."""
    wishes = [wish for number, finding in enumerate(report.findings) for wish in _wishes(number, finding, report.world)]
    settled = _Settled()
    chosen = [wish for wish in wishes if wish.is_chosen]
    for wish in sorted(chosen, key=lambda wish: wish.remedy.proof.status != "proved"):
        settled.add(wish)
    variables = (settled.shown(wish, variable) for wish in wishes for variable in wish.variables)
    options = (settled.option(wish, option) for wish in wishes for option in wish.options)
    return SettingsToApply(
        f"ddp-doctor {report.tool.version}, run {report.run_id}",
        tuple(dict.fromkeys(variable for variable in variables if variable)),
        tuple(dict.fromkeys(option for option in options if option)),
    )


@dataclass(frozen=True, eq=False)
class _Wish:
    """A fix of a finding."""

    number: int  # of the finding
    code: str
    remedy: Remedy
    is_chosen: bool
    note: str  # for the parts of it that are not applied
    variables: tuple[Variable, ...]

    @property
    def live(self) -> tuple[Variable, ...]:
        """The variables that are applied unless there is a conflict."""
        return tuple(variable for variable in self.variables if not variable.not_applied)

    @property
    def options(self) -> tuple[str, ...]:
        """The fix's options of docker run."""
        return tuple(option for option in self.remedy.container if _OPTION.fullmatch(option))


class _Settled:
    """The settings that are applied so far, and the reasons for those that are not."""

    def __init__(self) -> None:
        self._variables: dict[str, Variable] = {}
        self._finding_of: dict[str, int] = {}  # by the variable
        self._options: dict[str, tuple[str, _Wish]] = {}  # by the subject that docker accepts one option for
        self._refused: dict[str, str] = {}  # names in conflict with an applied fix: its code
        self._objections: dict[_Wish, str] = {}

    def add(self, wish: _Wish) -> None:
        """Apply the entire fix or nothing, because no trial tested a part of it."""
        objection = self._objections[wish] = self._objection(wish)
        if not objection:
            self._variables = {variable.name: variable for variable in wish.live} | self._variables
            self._finding_of = {variable.name: wish.number for variable in wish.live} | self._finding_of
            self._options = {_matter(option): (option, wish) for option in wish.options} | self._options
            self._refused |= dict.fromkeys(wish.remedy.conflicts, wish.code)

    def _objection(self, wish: _Wish) -> str:
        for variable in wish.live:
            given = self._variables.get(variable.name)
            if not variable.branches:
                return "not applied: it cannot be pasted completely"
            if given and given.branches != variable.branches:
                return f"{_CONFLICT}: {given.code} wants another value"
            if variable.sets and variable.name in self._refused:
                return f"{_CONFLICT}: it does not go with what {self._refused[variable.name]} wants"
        for option in wish.options:
            taken, by = self._options.get(_matter(option), (option, wish))
            if taken != option:
                return f"{_CONFLICT}: {by.code} wants {taken}"
        beside = (self._variables.get(name) for name in wish.remedy.conflicts)
        in_conflict = next((variable for variable in beside if variable and variable.sets), None)
        return f"{_CONFLICT}: it does not go with {in_conflict.name} of {in_conflict.code}" if in_conflict else ""

    def shown(self, wish: _Wish, variable: Variable) -> Variable | None:
        """Return the variable with its result, or None if another finding applies the same."""
        given = self._variables.get(variable.name)
        if given is variable:
            return variable
        if given and given.branches == variable.branches:
            return None
        note = self._objections.get(wish) or variable.not_applied
        if given and not note.startswith(_CONFLICT) and self._finding_of[variable.name] != wish.number:
            note = f"{_CONFLICT}: {given.code} wants another value"
        return replace(variable, not_applied=note)

    def option(self, wish: _Wish, option: str) -> ContainerOption | None:
        """Return the option of docker run with its result."""
        taken, by = self._options.get(_matter(option), ("", None))
        if taken == option and by is not wish:
            return None
        note = "" if taken == option else self._objections.get(wish) or wish.note
        return ContainerOption(_comment(wish.code, wish.remedy, ""), option, note)


def _matter(option: str) -> str:
    name = option.partition("=")[0]
    return option if name in _SEVERAL else _SAME_MATTER.get(name, name)


def _wishes(number: int, finding: Finding, world: World | None) -> list[_Wish]:
    """Return the fixes of a finding that can be applied. At most one of them is chosen."""
    usable = [
        remedy
        for remedy in finding.remedies
        if remedy.proof.status != "disproved" and (remedy.settings or remedy.container)
    ]
    proved = [remedy for remedy in usable if remedy.proof.status == "proved"]
    # A fix is certain if it is for an error, or unsets a leftover.
    sure = [
        remedy
        for remedy in usable
        if finding.severity is Severity.ERROR or any(_is_leftover(finding, setting) for setting in remedy.settings)
    ]
    chosen = next(iter((*proved, *sure)), None)
    found = []
    for remedy in usable:
        note = "a candidate" if chosen in (remedy, None) else "an alternative"
        note = note if remedy.proof.status == "proved" else f"{note}, {_tried(remedy.proof)}"
        variables = _variables(finding, remedy, world, note, is_chosen=remedy is chosen)
        found.append(_Wish(number, finding.code, remedy, remedy is chosen, note, variables))
    return found


def _is_leftover(finding: Finding, setting: Setting) -> bool:
    return setting.action == "unset" and finding.code.startswith("DD1")


def _variables(
    finding: Finding, remedy: Remedy, world: World | None, note: str, *, is_chosen: bool
) -> tuple[Variable, ...]:
    by_name = grouped((setting.name, setting) for setting in remedy.settings)
    found = []
    for name, settings in by_name.items():
        sure = finding.severity is Severity.ERROR or remedy.proof.status == "proved"
        is_live = is_chosen and (sure or all(_is_leftover(finding, setting) for setting in settings))
        variable = Variable(
            finding.code,
            _comment(finding.code, remedy, settings[0].why, name),
            name,
            not_applied="" if is_live else note,
        )
        try:
            values = branches(settings, world)
        except Unclear as why:
            found.append(replace(variable, because=f"{variable.because}; {why}"))
            continue
        if refusal := next(filter(None, (why_not(name, branch.value) for branch in values)), ""):
            found.append(replace(variable, because=f"{variable.because}; {refusal}"))
        else:
            found.append(replace(variable, branches=values, namesakes=namesakes(values, world)))
    return tuple(found)


def _tried(proof: Proof) -> str:
    if proof.status == "proved":
        return "proved"
    return "not tried" if proof.after is None else "tried, not proved"


def _comment(code: str, remedy: Remedy, why: str, name: str = "") -> str:
    """Return the comment in one line: finding, reason, proof, conflicts, undo."""
    proof, undo = remedy.proof, remedy.undo
    measured = _tried(proof)
    if proof.after is not None:
        measured = NOT_ITSELF if name in OF_LAUNCHER else f"{measured}: {proof.before} -> {proof.after}"
    parts = (
        code,
        why or remedy.summary,
        measured,
        f"does not go with {', '.join(remedy.conflicts)}" if remedy.conflicts else "",
        f"undo: {undo}" if undo else "",
    )
    return "; ".join(part for part in parts if part)
