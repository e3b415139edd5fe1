"""Facts about a process's environment: its launch, and the settings of libraries."""

from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.knowledge.launchers import Launcher
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class EnvVars(Fact):
    """The environment variables that matter to a DDP job, as ddp-doctor's own process inherited them."""

    KIND: ClassVar[str] = "env_vars/1"

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()  # set, but looks like a credential or is too long for a setting
    launcher: Launcher | None = None  # that started this process as a worker
    in_kubernetes: bool = False
    unreadable: dict[str, str] = Field(default_factory=dict)  # variables that name a file, and why it cannot be read
    is_written: bool = False  # written for a job, in a script or manifest: no value is a leftover


#: Block and branch, outermost first.
Path = tuple[tuple[int, int], ...]


#: ``environment``: of a process; ``listing``: only names and values; ``script``: written by a person.
Form = Literal["environment", "listing", "script"]


class Written(Frozen):
    """A place that gives a variable a value."""

    name: str
    line: int
    value: str | None = None  # None: withheld, looks like a credential
    depends_on: str | None = None  # known only to the shell that runs it
    unless_set: str | None = None  # the variable that changes this value if it was set before
    void: str | None = None  # why it does not count
    path: Path = ()  # block and branch of a script, outermost first


#: ``once``: each node has its own value, but the shell before the starter expanded it; ``open``: unknown.
ArgumentKind = Literal["literal", "same", "each", "random", "once", "open"]
#: The host whose address an argument is, or how its number is counted.
#: ``unset``: it expands in a script that writes another one, and only that one sets it.
ArgumentMeaning = Literal[
    "",
    "own-name",
    "own-address",
    "own-addresses",
    "hosts",
    "first-host",
    "last-host",
    "submit-host",
    "local-rank",
    "unset",
]


class Argument(Frozen):
    """An argument of a launch: its text, and whether all nodes have the same."""

    text: str
    kind: ArgumentKind = "literal"
    means: ArgumentMeaning = ""
    fallback: str = ""  # the value if the command that computes it fails
    unless: str = ""  # the variable that changes this value if it was set before


#: How ranks are started: by one program on all nodes, a loop over hosts, the pods of a manifest, or an array of jobs.
Program = Literal[
    "sbatch", "pbs", "lsf", "kubernetes", "srun", "mpirun", "ssh", "pods", "array", "torchrun", "configuration"
]
Started = Literal["", "torchrun", "accelerate", "deepspeed", "python", "script"]


class HostFile(Frozen):
    """The hosts that DeepSpeed's launcher reads from its host file."""

    hosts: tuple[str, ...] = ()
    slots: tuple[int, ...] = ()  # of each host
    refused: str = ""  # why the launcher refuses the file


class Launch(Frozen):
    """A command in a script that requests nodes or starts ranks, with the numbers it gives."""

    program: Program
    line: int
    starts: Started = ""
    nodes: tuple[int, int] | None = None  # minimum and maximum
    tasks: int | None = None
    tasks_per_node: int | None = None
    gpus: int | None = None  # of the entire job
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    cpus_per_task: int | None = None
    agents: tuple[int, int] | None = None  # torchrun's --nnodes, minimum and maximum
    ranks_per_task: int | None = None  # torchrun's --nproc-per-node
    node_rank: bool = False  # torchrun is given its node rank
    quote: str = ""  # the line
    arguments: dict[str, Argument] = Field(default_factory=dict)  # torchrun's, by option; PET_* count
    path: Path = ()  # of the branch that it is in
    by_hand: bool = False  # no command in the file starts it on several nodes
    starter: str = ""  # the program that starts the tasks, as typed: srun, mpirun, jsrun
    container: str = ""  # the program that starts it in a container with a separate network
    waits: bool = False  # it starts one of the nodes, and the script continues after it has exited
    pods: int | None = None  # number of pods with this command
    environment: dict[str, Argument] = Field(default_factory=dict)  # variables that decide the rendezvous
    hosts: tuple[str, ...] = ()  # of SLURM's --nodelist, in SLURM's order
    host_file: HostFile | None = None
    file: str = ""  # the script that the text runs and that has this line; empty for the text itself
    script: str = ""  # the program that a launcher starts, as typed
    misspelt: tuple[str, str] | None = None  # an option that torchrun does not have, and the intended one
    cut: int | None = None  # line with the rest of its options, which the shell runs as another command

    @property
    def place(self) -> str:
        """``line 5`` or ``run.sh line 5``."""
        return f"{self.file} line {self.line}".lstrip()

    @property
    def by(self) -> str:
        """The name of what starts it on the nodes."""
        return self.starter or self.program


class Unchecked(Frozen):
    """A line that was not understood."""

    line: int
    quote: str
    reason: str
    file: str = ""  # as in Launch

    @property
    def place(self) -> str:
        """``line 5`` or ``run.sh line 5``."""
        return f"{self.file} line {self.line}".lstrip()


class HeaderFault(Frozen):
    """A line for sbatch that it ignores or refuses."""

    line: int
    quote: str
    kind: Literal["option", "directive", "late"]  # not an sbatch option; not a directive; after the first command
    typed: str
    meant: str = ""


class SettingText(Fact):
    """The settings in a text, in order."""

    KIND: ClassVar[str] = "setting_text/2"

    form: Form
    written: tuple[Written, ...] = ()
    calls_torchrun: bool = False
    job: Launch | None = None  # the requests in the lines for the scheduler
    launches: tuple[Launch, ...] = ()  # in their order
    unchecked: tuple[Unchecked, ...] = ()  # lines that may start ranks and were not understood
    unread: tuple[Unchecked, ...] = ()  # other lines
    header_faults: tuple[HeaderFault, ...] = ()
    torch: str | None = None  # releases, from the output of torch.utils.collect_env
    nccl: str | None = None
    rocm: str | None = None

    def in_force(self) -> dict[str, Written]:
        """Return the assignment in force of each variable."""
        return {written.name: written for written in self.written if written.void is None}

    def possible(self) -> dict[str, tuple[Written, ...]]:
        """Return the possible assignments of each variable, last first. The branches of the script decide."""
        found: dict[str, tuple[Written, ...]] = {}
        for written in reversed(self.written):
            later = found.get(written.name, ())
            if written.void is None and not any(written.path[: len(earlier.path)] == earlier.path for earlier in later):
                found[written.name] = (*later, written)
        return found


#: ``set``: in that process, which was started without it; ``given``: that process of another user may have set or
#: inherited it; ``first``: that process, the first of its tree, was started with it.
How = Literal["set", "given", "first"]


class Origin(Frozen):
    """The process that gave a variable its value."""

    how: How
    process: str  # its name, at most 15 characters
    pid: int


class SettingOrigins(Fact):
    """The processes that gave variables their values, and the login files that set the same values."""

    KIND: ClassVar[str] = "setting_origins/1"

    origins: dict[str, Origin] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)  # PATH:LINE that sets the same value
