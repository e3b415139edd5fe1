"""The settings file that applies in the real NCCL, by release, and in ddp-doctor."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ddp_doctor.facts.node.nccl import NcclFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording
from ddp_doctor.settings.nccl_conf import files_read, set_by_files
from tests.lab.hosts import ROOT
from tests.machines import servers
from tests.nccl_wheels import RELEASES
from tests.planted.test_nccl import nccl, skip_where_none_can_be_planted
from tests.planted.world import Machines

pytestmark = pytest.mark.planted

#: Each is set in one place more than the one before.
NAMES = ("NCCL_CHECK_POINTERS", "NCCL_DMABUF_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_MAX_NCHANNELS")
SYSTEM, PASSWD, HOME, NAMED, ENVIRONMENT = "12345"
#: Prints what ddp-doctor reads of the files.
ASKS = """
import json, os, time
from ddp_doctor.probing.nccl_interface import conf_files
from ddp_doctor.sources.machine import LiveContext
print(json.dumps([file.model_dump() for file in conf_files(LiveContext(dict(os.environ), time.monotonic() + 60))]))
"""


def lines(value: str, first: int) -> str:
    return "".join(f"{name}={value}\n" for name in NAMES[first:])


@pytest.fixture(scope="module")
def planted() -> Iterator[Machines]:
    """Yield a host with its own /etc, where a user's directory in passwd is not $HOME."""
    skip_where_none_can_be_planted()
    with Machines([servers.dgx_h100()]) as machines:
        [host] = machines.hosts
        etc, by_passwd = host.folder / "own-etc", host.folder / "passwd-home"
        by_passwd.mkdir()
        host.run(("sh", "-ec", f"cp -a /etc/. {etc}; mount --bind {etc} /etc"))
        passwd = (etc / "passwd").read_text()
        (etc / "passwd").write_text(re.sub(r"(?m)^(root:.*:)[^:]*(:[^:]*)$", rf"\g<1>{by_passwd}\2", passwd))
        (etc / "nccl.conf").write_text(lines(SYSTEM, 0))
        (by_passwd / ".nccl.conf").write_text(lines(PASSWD, 1))
        (Path(host.environment["HOME"]) / ".nccl.conf").write_text(lines(HOME, 1))
        (host.folder / "named.conf").write_text(lines(NAMED, 2))
        yield machines


@pytest.mark.parametrize(
    ("release", "counts", "counts_with_one_named"),
    [
        ("2.21.5", (SYSTEM, PASSWD, PASSWD, ENVIRONMENT), (SYSTEM, PASSWD, PASSWD, ENVIRONMENT)),
        ("2.27.5", (SYSTEM, PASSWD, PASSWD, ENVIRONMENT), (SYSTEM, SYSTEM, NAMED, ENVIRONMENT)),
        ("2.30.7", (SYSTEM, HOME, HOME, ENVIRONMENT), (SYSTEM, SYSTEM, NAMED, ENVIRONMENT)),
        ("2.32.3", (SYSTEM, HOME, HOME, ENVIRONMENT), (SYSTEM, SYSTEM, NAMED, ENVIRONMENT)),
    ],
)
@pytest.mark.parametrize("is_named", [False, True], ids=["no file is named", "a file is named"])
def test_environment_precedes_the_users_file_and_the_systems_file(
    planted: Machines, release: str, counts: tuple[str, ...], counts_with_one_named: tuple[str, ...], is_named: bool
):
    assert release in RELEASES
    [host] = planted.hosts
    env = {NAMES[-1]: ENVIRONMENT}
    if is_named:
        env["NCCL_CONF_FILE"] = str(host.folder / "named.conf")

    ran = planted.run(nccl(release), 1, env={**env, "NCCL_DEBUG_SUBSYS": "ENV,INIT"})

    told = dict(re.findall(r"(NCCL_\w+) set by environment to (\d+)", ran.said[0]))
    expected = dict(zip(NAMES, counts_with_one_named if is_named else counts, strict=True))
    assert {name: told.get(name) for name in NAMES} == expected, ran.said[0]
    asked = host.run((sys.executable, "-c", ASKS), env={**env, "PYTHONPATH": str(ROOT)})
    assert {**by_files(json.loads(asked.stdout), release), **env} == {**env, **expected}


def by_files(files: object, release: str) -> Mapping[str, str]:
    facts = {
        "nccl": NcclFact.model_validate({"conf": files}),
        "software": Software(python="3.11", machine="x86_64", nccl_loaded=release),
    }
    readings = tuple(Reading(check=it, status=Status.COLLECTED, fact=fact.recorded()) for it, fact in facts.items())
    recording = Recording(readings=readings)
    [at] = recording.facts(NcclFact)
    return {name: value for name, (value, _) in set_by_files(files_read(recording, at)).items()}
