"""DD228-DD230, DD236: settings of nccl.conf: in force, overruled, without effect, or different between nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.nccl import ConfFile, ConfLine, NcclFact
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.knowledge.network.nccl_plugins import CONF_FILE_SINCE
from ddp_doctor.knowledge.versions import dotted
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.settings import agreement
from ddp_doctor.settings.names import is_unknown, nearest
from ddp_doctor.settings.nccl_conf import files_read, set_by_files
from ddp_doctor.settings.table import Agreement, never_read, variables
from ddp_doctor.settings.values import effective, misread
from ddp_doctor.settings.wording import printable, shown
from ddp_doctor.views.failed_trials import what_did_not_fit
from ddp_doctor.wording.differences import made_ranks_fail
from ddp_doctor.wording.findings import Who, likely
from ddp_doctor.wording.nodes import host, name_list, node_culprit, node_names, of_nodes, shortened

#: Reads a node's files; each item holds the lines of one finding.
_LinesOf = Callable[[tuple[ConfFile, ...], NcclFact], Iterable[tuple[str, ...]]]
_SOURCE = "NCCL src/misc/param.cc, setEnvFile and initEnvFunc"
#: Maximum number of lines in one piece of evidence; the recording has all lines.
_LINES_SHOWN = 12


@rule("DD228", "nccl-conf-in-force", Consequence.KNOWN, NcclFact)
def nccl_conf_in_force(recording: Recording) -> Iterator[Draft]:
    """NCCL settings come from a file, so no environment shows them.

    Finds: Each setting that NCCL reads from NCCL_CONF_FILE, ~/.nccl.conf or /etc/nccl.conf and that the environment
        does not set, with file and line. Values that look like a credential are hidden.
    Why: NCCL adds them to its environment when it starts. Comparing two `env` listings, or printing a script's
        settings, does not show them.
    Remedy: No change is needed if they are intended. An environment variable of the same name overrides the file.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for lines, group in _nodes_with_same_lines(recording, _in_force).items():
        path = lines[0].rpartition(":")[0].rpartition(" (")[2]
        title = f"NCCL on {{who}} reads {_names(lines)} from {path}"
        yield _draft(
            recording, group, title, lines, detail="The environment does not have it, so `env` does not show it."
        )


def _in_force(files: tuple[ConfFile, ...], fact: NcclFact) -> Iterator[tuple[str, ...]]:
    found = [
        (where.rpartition(":")[0], f"{shown(name, value)} ({where})")
        for name, (value, where) in set_by_files(files).items()
        if name not in fact.overruled and name in variables()
    ]
    for _, lines in groupby(found, key=lambda pair: pair[0]):
        yield tuple(line for _, line in lines)


@rule("DD229", "nccl-conf-overruled", Consequence.NO_EFFECT, NcclFact)
def nccl_conf_overruled(recording: Recording) -> Iterator[Draft]:
    """The environment overrides a setting in nccl.conf.

    Finds: A name that has one value in a file and another, with another effect, in the environment.
    Why: The environment wins, and NCCL does not warn. Editing the file has no effect.
    Remedy: Delete one of the two.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for lines, group in _nodes_with_same_lines(recording, _overruled).items():
        remedy = _edit("Delete the line or unset the variable")
        title = f"The environment overrides {_names(lines)} in nccl.conf on {{who}}"
        detail = "NCCL uses the environment's value without a warning."
        yield _draft(recording, group, title, lines, remedy, detail=detail)


def _overruled(files: tuple[ConfFile, ...], fact: NcclFact) -> Iterator[tuple[str, ...]]:
    lines = []
    for name, (value, where) in set_by_files(files).items():
        own = fact.overruled.get(name)
        if own is None or effective(name, own) == effective(name, value):
            continue
        lines.append(f"{shown(name, value)} ({where}); the environment has {shown(name, own)}")
    if lines:
        yield tuple(lines)


@rule("DD230", "nccl-conf-line-without-effect", Consequence.RISK, NcclFact)
def nccl_conf_line_without_effect(recording: Recording) -> Iterator[Draft]:
    """A line of nccl.conf does not have its apparent effect, or NCCL does not read the file.

    Finds: Lines without "=", with "export" or blanks around the name, names that no library reads, repeated names,
        values that NCCL reads differently than they look; a NCCL_CONF_FILE that does not exist, or that this NCCL
        is too old to read.
    Why: NCCL silently skips such lines, so the setting seems active but is not.
    Remedy: Write NAME=value at the start of the line, without export, quotes and spaces.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for lines, group in _nodes_with_same_lines(recording, lambda files, _: _useless(files)).items():
        count = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
        title = f"{count} of nccl.conf on {{who}} {'has' if len(lines) == 1 else 'have'} no effect"
        remedy = _edit("Write NAME=value at the start of the line, without export, quotes or spaces")
        yield _draft(recording, group, title, lines, remedy, detail="NCCL does not warn about such a line.")
    for problem, group in grouped(_unread_files(recording)).items():
        title = f"NCCL_CONF_FILE on {{who}} is ignored: {problem}"
        remedy = _edit("Set NCCL_CONF_FILE to an existing file")
        yield _draft(recording, group, title, (problem,), remedy, detail="NCCL continues without its settings.")


def _useless(files: tuple[ConfFile, ...]) -> Iterator[tuple[str, ...]]:
    found = []
    for file in files:
        own: dict[str, str] = {}
        for line in file.lines:
            fault = _fault(line, own)
            if fault:
                found.append(f"{file.path}:{line.number}: {fault}")
            if line.name and line.value is not None:
                own.setdefault(line.name, line.value)
    if found:
        yield tuple(found)


def _fault(line: ConfLine, before: Mapping[str, str]) -> str | None:
    """Describe the fault of a line; None if the line works, or if that is unknown."""
    name, value = line.name, line.value
    if name is None:
        return 'it has no "="'
    bare = name.strip().removeprefix("export ").strip()
    if bare != name:
        return f"it sets {printable(name)!r}, which no library reads"
    if value is None:
        return None
    if before.get(name, value) != value:
        return f"{name} is already set above, and the first line counts"
    if name in never_read() or (is_unknown(name) and nearest(name)):
        meant = nearest(name)
        return f"no library reads {name}" + (f"; did you mean {meant}?" if meant else "")
    wrong = misread(name, value)
    return f"{shown(name, value)} {wrong.becomes}" if wrong and not wrong.harmless else None


def _unread_files(recording: Recording) -> Iterator[tuple[str, FactAt[NcclFact]]]:
    for node in recording.facts(NcclFact):
        read = files_read(recording, node)
        for file in node.fact.conf:
            if file.reason == "named" and file not in read:
                yield f"NCCL reads it since {dotted(CONF_FILE_SINCE)}", node
            elif file.reason == "named" and file.problem and not file.lines:
                yield f"{file.path} {file.problem}", node


def _nodes_with_same_lines(recording: Recording, lines_of: _LinesOf) -> dict[tuple[str, ...], list[FactAt[NcclFact]]]:
    """Return each result of ``lines_of`` with the nodes that have it."""
    nodes = recording.facts(NcclFact)
    return grouped((lines, node) for node in nodes for lines in lines_of(files_read(recording, node), node.fact))


def _draft(
    recording: Recording,
    group: list[FactAt[NcclFact]],
    title: str,
    pieces: Iterable[str],
    *remedies: Remedy,
    detail: str,
    severity: Severity | None = None,
) -> Draft:
    nodes = dict.fromkeys(node.node for node in group)
    culprits = tuple(node_culprit(recording, node, kind="file", name="nccl.conf") for node in nodes)
    return likely(
        Who(culprits, node_names(recording, group)),
        title,
        Evidence(text="; ".join(shortened(list(pieces), _LINES_SHOWN)), expected_from=_SOURCE),
        *remedies,
        detail=detail,
        severity=severity,
    )


def _names(lines: Sequence[str]) -> str:
    """Return the variables that lines such as "NCCL_ALGO=Tree (/etc/nccl.conf:1)" set."""
    return name_list([line.partition("=")[0] for line in lines])


def _edit(summary: str) -> Remedy:
    return remedy(
        summary,
        scope="job",
        undo="restore the previous line",
        untried="nothing to measure: it follows from how NCCL reads the file",
    )


_SEVERITY = {"fatal": Severity.ERROR, "matters": Severity.WARNING, "minor": Severity.INFO}
#: Maximum number of nodes in the evidence if their values differ.
_NODES_SHOWN = 8


@rule("DD236", "nccl-conf-differs-between-nodes", Consequence.RISK, NcclFact, EnvVars)
def nccl_conf_differs_between_nodes(recording: Recording) -> Iterator[Draft]:
    """Because of nccl.conf, a setting differs between the nodes of a job.

    Finds: NCCL's value of a variable, from the environment or else from its files, differs between nodes, and a
        file set it on one of them. The severity is as for environments: an error for NCCL_ALGO, NCCL_PROTO and
        other settings that hang a job, and if a rank received mismatched data; names of a node's own devices may
        differ. Not reported if DD436 reports what the setting forbids.
    Why: The ranks use different settings although every environment is the same, so comparing `env` shows no
        difference.
    Remedy: Give all nodes the same file, or set the variable in the job script, which overrides the files.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    if not (recording.on_nccl and recording.several_nodes):
        return
    environments = {node.node: node.fact for node in recording.facts(EnvVars)}
    facts = [node for node in recording.facts(NcclFact) if node.node in environments]
    in_files = {node.node: set_by_files(files_read(recording, node)) for node in facts}
    names = {name for found in in_files.values() for name in found}
    rdma = (node.fact for node in recording.facts(RdmaFact) if node.fact.candidates())
    for name in sorted(names - {(fact.unused_by or "").partition("=")[0] for fact in rdma}):
        has = {
            node: environments[node].variables.get(name, found.get(name, (None, ""))[0])
            for node, found in in_files.items()
        }
        from_file = [
            node for node in facts if name in in_files[node.node] and name not in environments[node.node].variables
        ]
        does = frozenset(effective(name, value) for value in has.values())
        if len(does) < 2 or not from_file:
            continue
        stake = agreement.difference(name, does, agreement.Job(backend=recording.backend))
        if stake is not None:
            unfitting = what_did_not_fit(recording) if stake.weight != "minor" else ()
            draft = _difference_draft(recording, name, has, from_file, stake)
            yield made_ranks_fail(draft, unfitting) if unfitting else draft


def _difference_draft(
    recording: Recording, name: str, has: dict[int, str | None], from_file: list[FactAt[NcclFact]], stake: Agreement
) -> Draft:
    stakes = [
        f"{host(recording, node)}: {f'{name} unset' if value is None else shown(name, value)}"
        for node, value in list(has.items())[:_NODES_SHOWN]
    ]
    return likely(
        of_nodes(recording, from_file),
        f"nccl.conf on {{who}} sets a different {name} than on other nodes",
        Evidence(text="; ".join(stakes), expected_from=stake.source),
        remedy(
            "Use the same nccl.conf on all nodes, or set the variable in the job script, which overrides it",
            undo="restore the previous file",
            untried="ddp-doctor does not change files",
        ),
        detail=f"{name}: {stake.effect}.",
        severity=_SEVERITY[stake.weight],
    )
