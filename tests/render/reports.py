"""Reports of planted findings, plain ones and hostile ones, for the tests of what is handed over."""

import platform
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ddp_doctor.model.choices import Confidence, Severity, Verdict
from ddp_doctor.model.finding import Finding, Proof, Remedy, Setting
from ddp_doctor.model.recording import Node, World
from ddp_doctor.model.report import Report, Tool
from ddp_doctor.remedies.settings_to_apply import SettingsToApply, settings_to_apply

HERE = platform.node()
PROVED = Proof(status="proved", before="1 GB/s", after="5 GB/s")
DISPROVED = Proof(status="disproved", before="5 GB/s", after="1 GB/s")


def remedy(*settings: Setting, proof: Proof | None = None, **more: Sequence[str]) -> Remedy:
    fields = {name: tuple(value) for name, value in more.items()}
    return Remedy(summary="mend it", settings=settings, proof=proof or Proof()).model_copy(update=fields)


def finding(
    code: str, severity: Severity, *remedies: Remedy | Setting, proof: Proof | None = None
) -> Finding:
    """With these remedies, or with one that is made of these settings."""
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
    *(
        "';touch canary;'",
        "*/",
        "#",
        "%s%n",
        "-n",
        "--",
        ";;",
        "esac",
        ") touch canary ;; *",
        "a|b",
        "&",
        ">canary",
    ),
    *("é", "\U0001f600", "{a,b}", "*", "[a-z]", "$'\\x41'", "$$", "$(HOME)", "$$(HOME)", "x" * 5000),
)
_NAMES = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "MASTER_ADDR", "OMP_NUM_THREADS", "UCX_TLS", "FI_PROVIDER")
_OPTIONS = ("--shm-size=2g", "--cap-add=SYS_NICE", "--ipc=host")
_HOSTS = (HERE, f"{HERE}.example.com", "node1", "node1.b")

_TEXT = st.one_of(
    st.sampled_from(_NASTY), st.text(max_size=6), st.tuples(*[st.sampled_from(_NASTY)] * 2).map("".join)
)
_VALUE = st.one_of(
    st.sampled_from([one for one in _NASTY if one.isprintable()]), st.sampled_from(_HOSTS), _TEXT
)
_SEVEN_OF_EIGHT = st.sampled_from([True] * 7 + [False])


def _mostly(good: Sequence[str | None]) -> st.SearchStrategy[str | None]:
    return _SEVEN_OF_EIGHT.flatmap(lambda is_good: st.sampled_from(good) if is_good else _TEXT)


_SETTING = st.builds(
    Setting,
    name=_mostly([*_NAMES, *_NAMES, "PATH", "UID"]),
    value=_VALUE,
    action=st.sampled_from(["set", "set", "set", "unset"]),
    why=_TEXT,
    node=_mostly([None, None, None, *_HOSTS]),
    node_rank=st.sampled_from([None] * 12 + [-1, 0, 1, 2]),
)
_PROOF = st.builds(
    Proof, status=st.sampled_from(["proved", "proved", "disproved", "not_tried"]), before=_TEXT, after=_TEXT
)
_REMEDY = st.builds(
    Remedy,
    summary=_TEXT,
    settings=st.lists(_SETTING, min_size=1, max_size=2).map(tuple),
    undo=_TEXT,
    proof=_PROOF,
    conflicts=st.sampled_from([(), (), ("NCCL_IB_HCA",), ("x\ntouch canary",)]),
    container=st.lists(_mostly(_OPTIONS), max_size=1).map(tuple),
)
_FINDING = st.builds(
    Finding,
    code=_mostly(["DD101", "DD401", "DD601"]),
    name=st.just("a-fault"),
    severity=st.sampled_from([Severity.ERROR, Severity.WARNING]),
    title=_TEXT,
    confidence=st.just(Confidence.POSSIBLE),
    remedies=st.lists(_REMEDY, min_size=1, max_size=2).map(tuple),
)
_REPORT = st.builds(
    lambda findings, hosts, run_id: report(*findings, on=world(*hosts) if hosts else None, run_id=run_id),
    st.lists(_FINDING, min_size=1, max_size=2),
    st.lists(st.sampled_from([HERE, "node1", "node1.a", "$(touch canary)"]), max_size=3),
    _TEXT,
)


def hostile_reports(count: int) -> list[Report]:
    """Reports in which whatever comes from outside wants to be more than text."""
    found: list[Report] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_REPORT)
    def collect(one: Report) -> None:
        found.append(one)

    collect()
    return found
