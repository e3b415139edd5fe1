"""The settings in force on each node: the environment's, else those of NCCL's own files."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.checks.node.env_vars.drafts import per_cause
from ddp_doctor.checks.node.env_vars.hardware import Hardware, hardware_of
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.nccl import NcclFact
from ddp_doctor.knowledge.versions import Version
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Proof, Remedy, Setting
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.remedies.settings import FOLLOWS, NO_TRIAL, unset
from ddp_doctor.settings.nccl_conf import files_read, set_by_files
from ddp_doctor.settings.releases import Installed
from ddp_doctor.settings.table import variables
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.nccl_backend import nccl_backends
from ddp_doctor.views.settings_read import installed, judged, read_by_another_backend, with_rccl


@dataclass(frozen=True)
class InForce:
    """The settings of one node and what decides what they do there.

    ``places`` says of those that a file sets where: "/etc/nccl.conf:3". ``installed`` has the releases that decide
    which variables are read; ``backend`` is the run's, "" where there is none. ``unread`` are the settings that only
    torch's other class behind "nccl" reads: they do nothing here, good or bad.
    """

    seen: FactAt[EnvVars]
    values: Mapping[str, str]
    places: Mapping[str, str]
    installed: Installed
    unread: Mapping[str, str]
    backend: str
    nnodes: int | None
    ranks: int | None
    hardware: Hardware

    @property
    def nccl(self) -> Version:
        """The release of NCCL that is loaded; () where that is not known."""
        return self.installed.nccl

    def listed(self, names: Iterable[str]) -> str:
        """``A=1, B=2 (/etc/nccl.conf:3)``."""
        return ", ".join(
            shown(name, self.values[name]) + (f" ({self.places[name]})" if name in self.places else "")
            for name in names
            if name in self.values
        )

    def without(
        self, names: Iterable[str], why: str, summary: str = "", proof: Proof | None = None
    ) -> Remedy:
        """Take these settings away: out of the environment, or overruled by the default where a file sets them."""
        pairs = {name: self.values[name] for name in names if name in self.values}
        in_files = {name: self.places[name] for name in pairs if name in self.places}
        if not in_files:
            return unset(pairs, why, summary, proof or FOLLOWS)
        return Remedy(
            summary=f"Take {' and '.join(in_files)} out of {' and '.join(dict.fromkeys(in_files.values()))}",
            settings=tuple(_overruled(name, why, in_files) for name in pairs),
            cost="none, unless something else relies on it; until the file is mended the environment overrules it",
            undo="put the line back",
            proof=proof or NO_TRIAL,
        )

    def key(self) -> object:
        """Equal for nodes of which the same is to be said."""
        values, places = frozenset(self.values.items()), frozenset(self.places.items())
        unread = frozenset(self.unread.items())
        return values, unread, places, self.installed, self.seen.fact.launcher, self.hardware


def _overruled(name: str, why: str, in_files: Mapping[str, str]) -> Setting:
    known = variables().get(name)
    default = known.default if known else None
    if name not in in_files or default is None:
        return Setting(name=name, action="unset", why=why)
    return Setting(name=name, value=default, why=why)


def settings_in_force(recording: Recording) -> list[InForce]:
    """What is set on each node, in the order of the nodes."""
    return recording.once("settings in force", lambda: list(_in_force(recording)))


def _in_force(recording: Recording) -> Iterator[InForce]:
    releases, rccl = installed(recording), with_rccl(recording)
    backends = nccl_backends(recording)
    environments = {seen.node: seen.fact.variables for seen in recording.facts(EnvVars)}
    files = {seen.node: seen for seen in recording.facts(NcclFact)}
    world = recording.world
    for seen in judged(recording):
        own = seen.fact.variables
        has_files = seen.node in files and seen.node not in rccl  # that has ~/.rccl.conf
        added = set_by_files(files_read(recording, files[seen.node])) if has_files else {}
        ours = {name: told for name, told in added.items() if name not in own and _is_nccls(name)}
        yield InForce(
            seen=seen,
            values={**own, **{name: value for name, (value, _) in ours.items()}},
            places={name: place for name, (_, place) in ours.items()},
            installed=releases[seen.node],
            unread={
                name: value
                for name, value in environments[seen.node].items()
                if read_by_another_backend(name, backends.get(seen.node))
            },
            backend=world.backend if world else "",
            nnodes=max(world.nnodes, world.foreign_nodes) if world else None,
            ranks=world.world_size if world else None,
            hardware=hardware_of(recording, seen.node),
        )


def _is_nccls(name: str) -> bool:
    known = variables().get(name)
    return known is not None and known.owner == "nccl"


def say(recording: Recording, tell: Callable[[InForce], Iterable[Draft]]) -> Iterator[Draft]:
    """One draft per cause; nodes with the same settings are judged once, for there may be thousands."""
    known: dict[object, tuple[Draft, ...]] = {}

    def drafts() -> Iterator[tuple[FactAt[EnvVars], Draft]]:
        for node in settings_in_force(recording):
            key = node.key()
            if key not in known:
                known[key] = tuple(tell(node))
            yield from ((node.seen, draft) for draft in known[key])

    yield from per_cause(recording, drafts())


def differing(recording: Recording) -> frozenset[str]:
    """The settings that are not alike on all nodes, of which the check of agreement tells."""

    def find() -> frozenset[str]:
        sets = {frozenset(node.values.items()) for node in settings_in_force(recording)}
        return frozenset(name for pairs in sets for name, _ in pairs - frozenset.intersection(*sets))

    return recording.once("settings that differ between nodes", find)


def at_most(severity: Severity, node: InForce) -> Severity:
    """A warning where the run's backend is not the one that reads the setting."""
    is_nccls = node.backend in ("nccl", "")
    return severity if is_nccls or severity is not Severity.ERROR else Severity.WARNING
