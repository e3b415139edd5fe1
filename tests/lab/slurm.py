"""A real SLURM on one machine: munged and slurmctld on node0, one slurmd on each of node1, node2, …

    with Slurm(nodes=2, HealthCheckProgram="/etc/slurm/healthcheck.sh", HealthCheckInterval="2") as slurm:
        slurm.run("srun", "-N2", "hostname")

The hosts are those of hosts.py, so nothing is left when they exit. They see ``folder/etc`` as /etc/slurm and separate
directories as /var/lib and /var/log: a SLURM of the machine itself is neither read nor changed.

Needs root and Debian's slurm-wlm and munge. slurm.conf has the settings for a small machine: slurmd cannot own cgroups
in a host (CgroupPlugin, proctrack/linuxproc, task/none), and there are fewer CPUs than the nodes declare
(config_overrides).
"""

import os
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.lab.hosts import Host, Lab, why_no_lab
from tests.nvml_stand_in import SONAME, library_folder
from tests.waiting import LIMIT_S, wait_until

TOOLS = ("munged", "slurmctld", "slurmd", "srun", "mount", "ldconfig")

CONFIG = """
ClusterName=lab
SlurmctldHost=node0
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/%n.spool
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/own-tmp.sh
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,nohold_on_prolog_fail
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
PartitionName=all Nodes=ALL Default=YES State=UP
"""
#: The hosts share the machine's /tmp; a job has its node's own, as with SLURM's job_container/tmpfs.
OWN_TMP = """#!/bin/sh
echo "export TMPDIR={lab}/$SLURMD_NODENAME/tmp"
"""

#: srun prints these while SLURM still cleans up the step before, which takes longer on a busy machine.
_WAITED = re.compile(r"^srun: (?:Job (?:\S+ )?step creation .*, retrying|Step created for ).*\n", re.MULTILINE)


def why_no_slurm() -> str | None:
    """Return why no SLURM can be started here, or None if it can."""
    return why_no_lab(*TOOLS)


class Slurm:
    """A cluster whose nodes claim 8 CPUs and 8 GPUs each; of idle nodes a job gets the lowest first.

    Further settings of slurm.conf are keyword arguments.
    """

    def __init__(self, nodes: int = 2, **settings: str) -> None:
        self.settings = settings
        self.lab = Lab(nodes + 1)
        self.head, *self.nodes = self.lab.hosts
        #: On the lab's disk, seen by all hosts under the same path.
        self.folder = self.lab.folder / "slurm"
        self.etc = self.folder / "etc"
        self.etc.mkdir(parents=True)

    def __getitem__(self, name: str) -> Host:
        return self.lab[name]

    def __enter__(self) -> "Slurm":
        try:
            self.lab.__enter__()
            self._start()
        except BaseException:
            self.lab.teardown()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.lab.teardown()

    def run(self, *argv: str, timeout_s: float = LIMIT_S) -> "subprocess.CompletedProcess[str]":
        """Run a command on node0, as a user on the login node would."""
        return self.head.run(argv, timeout_s=timeout_s, check=False)

    def script(self, path: str, text: str) -> Path:
        """Write an executable file that all hosts see: ``etc/prolog.d/50.sh``."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_name(f"{file.name}.new")
        made.write_text(text)
        made.chmod(0o755)
        return made.replace(file)  # slurmd may run the old one, which cannot be written to then

    def batch(self, text: str, *options: str) -> "Job":
        """Submit a batch script."""
        number = len(list(self.folder.glob("job*.sh")))
        script = self.script(f"job{number}.sh", f"#!/bin/bash\n{text}\n")
        output = script.with_suffix(".out")
        output.touch()
        submit = ("sbatch", "--parsable", f"--output={output}", "--open-mode=append", *options, str(script))
        done = self.run(*submit)
        assert done.returncode == 0, done.stderr
        return Job(self, done.stdout.strip(), output)

    def state(self, node: str) -> str:
        """Such as ``idle`` or ``drained``."""
        return self.run("sinfo", "-h", "-N", "-n", node, "-o", "%T").stdout.strip()

    def reason(self, node: str) -> str:
        """Return the full reason of ``sinfo -R`` for an unavailable node, which sinfo truncates by default; or ""."""
        rows = self.run("sinfo", "-R", "-h", "-N", "-n", node, "-o", "%E").stdout.splitlines()
        return rows[0] if rows else ""

    def undrain(self, node: str) -> None:
        """Undrain a node like ``state=resume``, without waiting for SLURM's next ping of the node."""
        done = self.run("scontrol", "update", f"nodename={node}", "state=undrain")
        assert done.returncode == 0, done.stderr

    def seen(self, host: Host, path: str) -> Path:
        """Return the location of a file that ``host`` calls ``path``, below /var/lib or /var/log."""
        return self.folder / host.name / path.lstrip("/")

    def plant_gpus(self, host: Host, fault: str = "healthy") -> None:
        """Give a host the stand-in for NVIDIA's library with this fault, replacing an earlier one."""
        folder = self.folder / host.name / "nvidia"
        library = folder / SONAME
        new = folder / "new"
        first = not folder.exists()
        folder.mkdir(exist_ok=True)
        shutil.copy(Path(library_folder(f'FAULT="{fault}"'), SONAME), new)
        new.replace(library)
        if first:
            cache = folder / "ld.so.cache"
            subprocess.run(("ldconfig", "-X", "-C", str(cache), str(folder)), check=True, timeout=LIMIT_S)
            _mount(host, cache, "/etc/ld.so.cache")

    def start_slurmd(self, host: Host) -> None:
        """Start a node's slurmd."""
        host.start(("/usr/sbin/slurmd", "-D"))

    def logs(self) -> str:
        """The end of every log of SLURM's, for the message of a test that fails."""
        texts = (
            f"--- {path}\n{path.read_text(errors='replace')[-4000:]}"
            for path in sorted((*self.folder.glob("*.log"), *self.folder.glob("job*.out")))
        )
        return "\n".join(texts)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for the condition. Raises AssertionError with SLURM's logs."""
        try:
            wait_until(condition)
        except AssertionError as error:
            raise AssertionError(self.logs()) from error

    # --- start ---

    def _start(self) -> None:
        self.lab.folder.chmod(0o755)  # munge requires its socket to be accessible to all users
        for made in ("state", "munge", *(f"{node.name}.spool" for node in self.nodes)):
            (self.folder / made).mkdir()
        self.script("own-tmp.sh", OWN_TMP.format(lab=self.lab.folder))
        self._write_config()
        for host in (self.head, *self.nodes):
            _mount(host, self.etc, "/etc/slurm")
            for own in ("/var/lib", "/var/log"):
                self.seen(host, own).mkdir(parents=True)
                _mount(host, self.seen(host, own), own)
        self._start_munged()
        self.head.start(("/usr/sbin/slurmctld", "-D"))
        for node in self.nodes:
            self.start_slurmd(node)
        self.wait_until(lambda: all(self.state(node.name) == "idle" for node in self.nodes))

    def _write_config(self) -> None:
        lines = [CONFIG.format(folder=self.folder)]
        lines += [f"{name}={value}" for name, value in self.settings.items()]
        for node in self.nodes:
            lines.append(f"NodeName={node.name} CPUs=8 RealMemory=1000 Gres=gpu:8 Weight={node.index}")
        (self.etc / "slurm.conf").write_text("\n".join(lines) + "\n")
        (self.etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.etc / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-7] Flags=nvidia_gpu_env\n")
        for number in range(8):
            os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))

    def _start_munged(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        files = (f"--{name}={folder / name}" for name in ("socket", "pid-file", "log-file", "seed-file"))
        self.head.start(("/usr/sbin/munged", "--foreground", f"--key-file={key}", *files))
        self.wait_until((folder / "socket").exists)


class Job:
    """A batch job."""

    def __init__(self, slurm: Slurm, number: str, output: Path) -> None:
        self.number = number
        self._slurm = slurm
        self._output = output

    @property
    def output(self) -> str:
        """Return its output up to now, without srun's notices that a step waited."""
        return _WAITED.sub("", self._output.read_text())

    def field(self, name: str) -> str:
        """Return one field of ``scontrol show job``, such as JobState, ExitCode or NodeList."""
        shown = self._slurm.run("scontrol", "show", "job", self.number).stdout
        return next((word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}=")), "")

    def wait(self) -> str:
        """Wait for the end and return the last state."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        self._slurm.wait_until(lambda: self.field("JobState") in ended)
        return self.field("JobState")


def _mount(host: Host, ours: Path, path: str) -> None:
    host.run(("mount", "--bind", ours, path))
