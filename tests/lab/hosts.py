"""Real hosts on one machine: each has its own network, name, processes, /dev/shm and /etc/hosts.

    with Lab(nodes=4) as lab:
        done = lab["node1"].run(("ping", "-c1", "node0"))
        started = lab.start_everywhere(lambda host: ("ddp-doctor", "run", "--node-rank", str(host.index)))

A host is a process (init.sh) in network, process, mount, IPC and name namespaces that have no name outside. So two labs
cannot collide, and nothing can be left: when this process exits for any reason, the pipes to those first processes
close and they exit. The kernel then kills all processes of their hosts and removes the networks. The switch is one more
such host, with a bridge for every network.
"""

import compileall
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from ddp_doctor.checks import CHECKS
from tests.lab.processes import HostProcess, comm, pids_in
from tests.waiting import LIMIT_S, wait_until

ROOT = Path(__file__).parent.parent.parent
INIT, ENTER = (Path(__file__).with_name(name) for name in ("init.sh", "enter.py"))
PREFIX = "ddp-lab-"
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")
TOOLS = ("ip", "nft", "tc", "ethtool", "nsenter", "unshare")

#: On whatever the machine has; no address is lost with the link, nor tried out before it may be used.
IPV6_SETTINGS = tuple(
    (f"ipv6.conf.{scope}.{name}", value)
    for scope in ("all", "default")
    for name, value in (("disable_ipv6", 0), ("keep_addr_on_down", 1), ("accept_dad", 0))
)

Ipv6 = Literal["none", "dual", "only"]

#: For runs whose fault strikes before DDP's checks: without them each host imports half as much of torch.
WITHOUT_DDP = ("--skip", ",".join(check.id for check in CHECKS if check.group == "DDP"))


def why_no_lab(*more_tools: str) -> str | None:
    """Return why no lab can be created here, or None if it can."""
    if os.geteuid() != 0:
        return "needs root"
    if missing := [tool for tool in (*TOOLS, *more_tools) if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)}"
    return _why_no_namespaces()


@cache
def _why_no_namespaces() -> str | None:
    """Return the error of the kernel or the surrounding container about namespaces, or None."""
    done = subprocess.run(("unshare", *NAMESPACES, "--fork", "true"), check=False, capture_output=True, text=True)
    return f"needs namespaces: {done.stderr.strip()}" if done.returncode else None


class Host:
    """One host. ``address`` is its IPv4 address on eth0, or its IPv6 address without one."""

    def __init__(self, name: str, index: int, folder: Path) -> None:
        self.name = name
        self.index = index
        self.folder = folder
        self.addresses: dict[str, tuple[str, ...]] = {}  # interface -> addresses with prefix length
        self.environment = _environment(folder)
        self._init: subprocess.Popen[str] | None = None
        self._pid = 0
        self._started: list[HostProcess] = []
        self._numbers = itertools.count()
        for part in ("etc", "cgroup", "home", "tmp", "out"):
            (folder / part).mkdir(parents=True)
        (folder / "etc/resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        (folder / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        (folder / "etc/hosts").write_text("127.0.0.1 localhost\n")

    def __repr__(self) -> str:
        return self.name

    @property
    def pid(self) -> int:
        """Process id of the host's first process, as seen from outside."""
        return self._pid

    @property
    def address(self) -> str:
        """The address that the other hosts know it by."""
        return self.addresses["eth0"][0].partition("/")[0]

    @property
    def root(self) -> Path:
        """The host's file system as it sees it itself, /dev/shm and /etc/hosts included."""
        return Path(f"/proc/{self._pid}/root")

    def boot(self) -> None:
        """Start the host's first process; ``ready`` waits for it."""
        self._init = subprocess.Popen(
            ("unshare", *NAMESPACES, "--fork", "--kill-child", "sh", INIT, self.name, self.folder, sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the lab, which then ends the host
        )

    def ready(self) -> None:
        """Wait until the host is up. Raises RuntimeError with what its first process said."""
        assert self._init is not None
        assert self._init.stdout is not None
        assert self._init.stderr is not None
        said = self._init.stdout.readline().strip()
        if not said:
            raise RuntimeError(f"{self.name} did not boot: {self._init.stderr.read().strip()}")
        self._pid = int(said)

    def halt(self) -> None:
        """End the host with all its processes; does nothing if it is already down."""
        if self._init is None:
            return
        for stream in (self._init.stdin, self._init.stdout, self._init.stderr):
            assert stream is not None
            stream.close()
        self._init.wait(LIMIT_S)
        for process in self._started:
            process.wait()
        self._init, self._pid, self._started = None, 0, []

    @property
    def is_up(self) -> bool:
        """Return True if the host runs."""
        return self._init is not None and self._init.poll() is None

    def enter(self, argv: Sequence[str | Path], *, cwd: Path | None = None) -> tuple[str, ...]:
        """Return the command that runs ``argv`` in this host, in a separate session."""
        folder = cwd or self.folder / "home"
        inside = (sys.executable, "-I", "-S", str(ENTER), str(self._pid), str(folder))
        return (*inside, *map(str, argv))

    def start(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> HostProcess:
        """Start a command; its output goes to files. ``env`` is added to the host's environment."""
        out = self.folder / "out" / str(next(self._numbers))
        process = HostProcess(self.enter(argv, cwd=cwd), {**self.environment, **(env or {})}, out)
        self._started.append(process)
        return process

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        text: str | None = None,
        timeout_s: float = LIMIT_S,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with ``text`` as its standard input."""
        done = subprocess.run(
            self.enter(argv),
            check=False,
            capture_output=True,
            text=True,
            input=text or "",
            timeout=timeout_s,
            env={**self.environment, **(env or {})},
        )
        return _checked(self, argv, done) if check else done

    def net(self, *argv: str, text: str = "") -> str:
        """Run one of the lab's own tools in the host's network only, where process ids are the lab's."""
        inside = ("nsenter", f"--target={self._pid}", "--net", "--", *argv)
        done = subprocess.run(inside, check=False, capture_output=True, text=True, input=text, timeout=LIMIT_S)
        return _checked(self, argv, done).stdout

    def ip(self, *lines: str) -> None:
        """Run lines of ``ip`` commands in this host's network."""
        self.net("ip", "-batch", "-", text="\n".join(lines))

    def sysctl(self, *settings: tuple[str, object]) -> None:
        """Set kernel parameters of this host's network, named without the leading ``net.``."""
        lines = (f"echo {value} >/proc/sys/net/{name.replace('.', '/')}" for name, value in settings)
        self.net("sh", "-e", text="\n".join(lines))

    def pids(self) -> list[int]:
        """Return all processes of this host except its first, by their pids outside."""
        return [pid for pid in pids_in(self._pid) if pid != self._pid] if self.is_up else []

    def find_process(self, name: str) -> int | None:
        """Return the process with this name (/proc/PID/comm, at most 15 characters), or None."""
        return next((pid for pid in self.pids() if comm(pid) == name), None)

    def wait_for_process(self, name: str) -> int:
        """Return the process of this name, once it runs."""
        pid = wait_until(lambda: self.find_process(name), f"process {name} runs in {self.name}")
        assert pid is not None
        return pid

    def left_behind(self, without: Collection[int] = ()) -> list[str]:
        """Return its current processes, shared memory and temporary files, one line each."""
        if not self.is_up:
            return []
        names = ((pid, comm(pid)) for pid in self.pids() if pid not in without)
        shared = (path.name for path in (self.root / "dev/shm").iterdir())
        files = (path.name for path in (self.folder / "tmp").iterdir())
        return [
            *(f"process {pid} {name}" for pid, name in names if name),
            *(f"/dev/shm/{name}" for name in shared),
            *(f"$TMPDIR/{name}" for name in files if not name.startswith("torchinductor_")),  # torch's own
        ]

    def read_hosts(self) -> str:
        """Return the text of the host's /etc/hosts."""
        return (self.folder / "etc/hosts").read_text()

    def write_hosts(self, text: str) -> None:
        """Replace the text of the host's /etc/hosts in place, because the file is mounted."""
        (self.folder / "etc/hosts").write_text(text)


class Lab:
    """A lab of ``nodes`` hosts node0, node1, … on one switch; ``name`` renames them.

    ``network`` and ``second_network`` are the first three numbers of the IPv4 addresses; node0 has .1. With
    ``second_nic`` there are eth1 and its switch. The IPv6 addresses of eth0 start at fd77::1.
    """

    def __init__(
        self,
        nodes: int = 4,
        network: str = "10.77.0",
        *,
        second_nic: bool = False,
        second_network: str = "10.78.0",
        ipv6: Ipv6 = "none",
        name: str = "node",
    ) -> None:
        sweep()
        compile_package()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.switch = Host("switch", nodes, self.folder / "switch")
        self.hosts = tuple(Host(f"{name}{i}", i, self.folder / f"{name}{i}") for i in range(nodes))
        self.networks = (network, second_network) if second_nic else (network,)
        self._ipv6: Ipv6 = ipv6

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def __enter__(self) -> "Lab":
        try:
            self._up()
        except BaseException:
            self.teardown()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.teardown()

    def teardown(self) -> None:
        """End all hosts and remove their files. May be called twice."""
        for host in (*self.hosts, self.switch):
            host.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _up(self) -> None:
        for host in (self.switch, *self.hosts):
            host.boot()
        for host in (self.switch, *self.hosts):
            host.ready()
        self.switch.sysctl(("ipv6.conf.default.disable_ipv6", 1))
        for nic in range(len(self.networks)):
            self.switch.ip(f"link add br{nic} type bridge forward_delay 0", f"link set br{nic} up")
        for host in self.hosts:
            self.connect(host)
        for host in self.hosts:
            self.write_names(host)

    def boot(self, host: Host) -> None:
        """Start a host that was powered off."""
        for nic in range(len(self.networks)):
            with contextlib.suppress(RuntimeError):  # the kernel may have removed it already
                self.switch.ip(f"link delete {self.port(host, f'eth{nic}')}")
        host.boot()
        host.ready()
        self.connect(host)
        self.write_names(host)

    def connect(self, host: Host) -> None:
        """Lay the host's cables to the switch and give it its addresses."""
        host.sysctl(*IPV6_SETTINGS)
        for nic in range(len(self.networks)):
            port = self.port(host, f"eth{nic}")
            hardware = f"02:00:00:00:{nic:02x}:{host.index:02x}"  # the same after a boot
            self.switch.ip(
                f"link add {port} type veth peer name eth{nic} address {hardware} netns {host.pid}",
                f"link set {port} master br{nic} up",
            )
            host.addresses[f"eth{nic}"] = tuple(self._addresses(host, nic))
        host.ip("link set lo up", *_address_lines(host))

    def port(self, host: Host, nic: str = "eth0") -> str:
        """The switch's end of a host's cable."""
        return f"p{nic.removeprefix('eth')}-{host.index}"

    def write_names(self, host: Host, families: tuple[int, ...] = (4, 6)) -> None:
        """Write the host's /etc/hosts with the addresses on eth0 of all hosts in these families."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        for other in self.hosts:
            addresses = (address.partition("/")[0] for address in other.addresses.get("eth0", ()))
            lines += [f"{it} {other.name}" for it in addresses if (6 if ":" in it else 4) in families]
        host.write_hosts("\n".join([*lines, ""]))

    def start_everywhere(
        self,
        argv_of: Callable[[Host], Sequence[str | Path]],
        *,
        env_of: Callable[[Host], Mapping[str, str]] = lambda _host: {},
    ) -> dict[str, HostProcess]:
        """Start a command on every host at the same time; the processes by host name."""
        return {host.name: host.start(argv_of(host), env=env_of(host)) for host in self.hosts}

    def left_behind(
        self,
        grace_s: float = LIMIT_S,
        without: Collection[int] = (),
        counts: Callable[[str], bool] = lambda _line: True,
    ) -> list[str]:
        """Return the lines that ``counts`` accepts after a grace period, without these processes."""
        found: list[str] = []

        def look() -> bool:
            lines = [f"{host.name}: {line}" for host in self.hosts for line in host.left_behind(without)]
            found[:] = [line for line in lines if counts(line)]
            return not found

        with contextlib.suppress(AssertionError):
            wait_until(look, limit_s=grace_s)
        return found

    def _addresses(self, host: Host, nic: int) -> Iterator[str]:
        if self._ipv6 != "only" or nic > 0:
            yield f"{self.networks[nic]}.{host.index + 1}/24"
        if self._ipv6 != "none" and nic == 0:
            yield f"fd77::{host.index + 1:x}/64"


def sweep() -> None:
    """Remove the files of labs whose process is gone; of their hosts nothing can be left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def compile_package() -> None:
    """Keep the package compiled, as in an installation; otherwise each process of each host compiles it again."""
    for folder in (ROOT / "ddp_doctor", ROOT / "ddp_doctor/checks"):  # the second is a link, which is not followed
        compileall.compile_dir(folder, quiet=2)


def _checked(
    host: Host, argv: Sequence[str | Path], done: subprocess.CompletedProcess[str]
) -> subprocess.CompletedProcess[str]:
    if done.returncode:
        said = f"{done.stdout}{done.stderr}".strip()
        raise RuntimeError(f"{host.name}: {' '.join(map(str, argv))}: exit {done.returncode}: {said}")
    return done


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a login on the host: only the path comes from the lab's own environment."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
        "HOME": str(folder / "home"),
        "XDG_STATE_HOME": str(folder / "home/.local/state"),
        "TMPDIR": str(folder / "tmp"),
    }


def _address_lines(host: Host) -> Iterator[str]:
    for nic, addresses in host.addresses.items():
        for address in addresses:
            yield f"address add {address} dev {nic}" + (" nodad" if ":" in address else "")
        yield f"link set {nic} up"
