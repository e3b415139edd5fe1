"""Reports of simulated findings, plain and hostile, for the tests of outputs."""

import io
import platform
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from ddp_doctor.model.choices import Confidence, Severity, Verdict
from ddp_doctor.model.finding import Finding, Proof, Remedy, Setting
from ddp_doctor.model.recording import Node, World
from ddp_doctor.model.report import Report, Tool
from ddp_doctor.remedies.settings_to_apply import SettingsToApply, settings_to_apply

T = TypeVar("T")
HERE = platform.node()
PROVED = Proof(status="proved", before="1 GB/s", after="5 GB/s")
DISPROVED = Proof(status="disproved", before="5 GB/s", after="1 GB/s")


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def remedy(*settings: Setting, proof: Proof | None = None, **more: Sequence[str]) -> Remedy:
    fields = {name: tuple(value) for name, value in more.items()}
    return Remedy(summary="mend it", settings=settings, proof=proof or Proof()).model_copy(update=fields)


def finding(code: str, severity: Severity, *remedies: Remedy | Setting, proof: Proof | None = None) -> Finding:
    """Return a finding with these remedies, or with one remedy made of these settings."""
    whole = tuple(one for one in remedies if isinstance(one, Remedy))
    loose = tuple(one for one in remedies if isinstance(one, Setting))
    return Finding(
        code=code,
        name="a-fault",
        severity=severity,
        title="A fault",
        confidence=Confidence.POSSIBLE,
        remedies=whole or (remedy(*loose, proof=proof),),
    )


def error(*remedies: Remedy | Setting, code: str = "DD601") -> Finding:
    return finding(code, Severity.ERROR, *remedies)


def warning(*remedies: Remedy | Setting, code: str = "DD402", proof: Proof | None = None) -> Finding:
    return finding(code, Severity.WARNING, *remedies, proof=proof)


def world(*hosts: str) -> World:
    nodes = tuple(Node(node_rank=rank, hostname=host) for rank, host in enumerate(hosts))
    return World(nnodes=len(hosts), world_size=len(hosts), nodes=nodes)


def report(*findings: Finding, on: World | None = None, run_id: str = "x") -> Report:
    return Report(
        tool=Tool(version="1"),
        run_id=run_id,
        started_at="",
        duration_s=0.0,
        world=on,
        verdict=Verdict.HEALTHY,
        exit_code=0,
        summary="",
        findings=findings,
    )


def given_by(*findings: Finding, on: World | None = None) -> SettingsToApply:
    return settings_to_apply(report(*findings, on=on))


# --- hostile ones -----------------------------------------------------------------------------------

_NASTY = (
    *("'", '"', "`touch canary`", "$(touch canary)", "${PATH}", "a b", "", " ", "=eth1", "~root", "!!", "\\"),
    *("x\ntouch canary\n", "x\rtouch canary", "\x00", "\x1b]52;c;eA==\x07", "\u202etouch", "\ud800", "\x85x"),
    *("';touch canary;'", "*/", "#", "%s%n", "-n", "--", ";;", "esac", ") touch canary ;; *", "a|b", "&", ">canary"),
    *("é", "\U0001f600", "{a,b}", "*", "[a-z]", "$'\\x41'", "$$", "$(HOME)", "$$(HOME)", "x" * 5000),
)
_NAMES = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "MASTER_ADDR", "OMP_NUM_THREADS", "UCX_TLS", "FI_PROVIDER")
_OPTIONS = ("--shm-size=2g", "--cap-add=SYS_NICE", "--ipc=host")
_HOSTS = (HERE, f"{HERE}.example.com", "node1", "node1.b")


class _Hostile:
    """Draws from whatever comes from outside and wants to be more than text."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def pick(self, *choices: T) -> T:
        return self._dice.choice(choices)

    def some(self, make: Callable[[], T], least: int, most: int) -> tuple[T, ...]:
        return tuple(make() for _ in range(self._dice.randint(least, most)))

    def text(self) -> str:
        signs = "".join(chr(self._dice.randrange(self.pick(0x250, 0x110000))) for _ in range(self.pick(*range(7))))
        return self.pick(self.pick(*_NASTY), signs, self.pick(*_NASTY) + self.pick(*_NASTY))

    def mostly(self, *good: T) -> T | str:
        return self.text() if self._dice.random() < 1 / 8 else self.pick(*good)

    def setting(self) -> Setting:
        return Setting(
            name=self.mostly(*_NAMES, *_NAMES, "PATH", "UID"),
            value=self.pick(
                self.pick(*(sign for sign in _NASTY if sign.isprintable())), self.pick(*_HOSTS), self.text()
            ),
            action=self.pick("set", "set", "set", "unset"),
            why=self.text(),
            node=self.mostly(None, None, None, *_HOSTS),
            node_rank=self.pick(*[None] * 12, -1, 0, 1, 2),
        )

    def remedy(self) -> Remedy:
        return Remedy(
            summary=self.text(),
            settings=self.some(self.setting, 1, 2),
            undo=self.text(),
            proof=Proof(
                status=self.pick("proved", "proved", "disproved", "not_tried"), before=self.text(), after=self.text()
            ),
            conflicts=self.pick((), (), ("NCCL_IB_HCA",), ("x\ntouch canary",)),
            container=self.some(lambda: self.mostly(*_OPTIONS), 0, 1),
        )

    def finding(self) -> Finding:
        return Finding(
            code=self.mostly("DD101", "DD401", "DD601"),
            name="a-fault",
            severity=self.pick(Severity.ERROR, Severity.WARNING),
            title=self.text(),
            confidence=Confidence.POSSIBLE,
            remedies=self.some(self.remedy, 1, 2),
        )

    def report(self) -> Report:
        hosts = self.some(lambda: self.pick(HERE, "node1", "node1.a", "$(touch canary)"), 0, 3)
        findings = self.some(self.finding, 1, 4)
        return report(*findings, on=world(*hosts) if hosts else None, run_id=self.text())


def hostile_reports(count: int) -> list[Report]:
    """Return reports with foreign values that try to act as markup or code; the same reports on each call."""
    hostile = _Hostile(seed=1)
    return [hostile.report() for _ in range(count)]
