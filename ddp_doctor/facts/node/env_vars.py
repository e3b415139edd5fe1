"""What a process's environment says of its launch and of the libraries' settings."""

from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.knowledge.launchers import Launcher
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class EnvVars(Fact):
    """The variables that matter to a DDP job, as the doctor's own process inherited them."""

    KIND: ClassVar[str] = "env_vars/1"

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()  # set, but like a credential, or too long for a setting
    launcher: Launcher | None = None  # whose worker this process is
    in_kubernetes: bool = False
    unreadable: dict[str, str] = Field(default_factory=dict)  # names with the path of a file, and why it cannot be read
    is_written: bool = False  # by somebody for a job, in a script or manifest: nothing of it is left over


#: Block and branch, from the outermost inwards.
Path = tuple[tuple[int, int], ...]


#: ``environment``: what a process had; ``listing``: names and values alone; ``script``: somebody's work.
Form = Literal["environment", "listing", "script"]


class Written(Frozen):
    """One place where a variable is given a value."""

    name: str
    line: int
    value: str | None = None  # None: kept back, like a credential
    depends_on: str | None = None  # what only the shell that runs it knows
    unless_set: str | None = None  # the name that, set before, gives it another value
    void: str | None = None  # why it does not count
    path: Path = ()  # block and branch of a script, from the outermost inwards


#: ``once``: each node has its own value, but the shell in front of the starter expanded it; ``open``: unknown.
ArgumentKind = Literal["literal", "same", "each", "random", "once", "open"]
#: Whose address an argument is, or how its number is counted.
ArgumentMeaning = Literal[
    "", "own-name", "own-address", "own-addresses", "hosts", "first-host", "last-host", "submit-host", "local-rank"
]


class Argument(Frozen):
    """An argument of a launch: its text, and whether the nodes have the same."""

    text: str
    kind: ArgumentKind = "literal"
    means: ArgumentMeaning = ""
    fallback: str = ""  # the value if the command that makes it fails
    unless: str = ""  # the name that, set before, gives it another value


#: What starts ranks: one program on all nodes, a loop over hosts, the pods of a manifest, an array of jobs.
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
    """A command of a script that asks for nodes or starts ranks: its numbers, as far as they stand there."""

    program: Program
    line: int
    starts: Started = ""
    nodes: tuple[int, int] | None = None  # the fewest and the most
    tasks: int | None = None
    tasks_per_node: int | None = None
    gpus: int | None = None  # of the whole job
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    cpus_per_task: int | None = None
    agents: tuple[int, int] | None = None  # torchrun's --nnodes, the fewest and the most
    ranks_per_task: int | None = None  # torchrun's --nproc-per-node
    node_rank: bool = False  # whether torchrun is told its own
    quote: str = ""  # the line
    arguments: dict[str, Argument] = Field(default_factory=dict)  # torchrun's, by option; PET_* count
    path: Path = ()  # of the branch that it is in
    by_hand: bool = False  # nothing in the file starts it on several nodes
    starter: str = ""  # the program that starts the tasks, as typed: srun, mpirun, jsrun
    container: str = ""  # the program that starts it in a container with its own network
    waits: bool = False  # it starts one of the nodes, and the script goes on after its end
    pods: int | None = None  # with this very command
    environment: dict[str, Argument] = Field(default_factory=dict)  # as far as it decides who meets where
    hosts: tuple[str, ...] = ()  # of SLURM's --nodelist, in SLURM's order
    host_file: HostFile | None = None
    file: str = ""  # the script that the text runs and that has this line; empty for the text itself
    script: str = ""  # the program that a launcher starts, as it is typed
    misspelt: tuple[str, str] | None = None  # an option that torchrun does not have, and the one that is meant
    cut: int | None = None  # the line with the rest of its options, which the shell takes for another command

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
    kind: Literal["option", "directive", "late"]  # no option of sbatch; no directive; behind the first command
    typed: str
    meant: str = ""


class SettingText(Fact):
    """What a text sets, in its order."""

    KIND: ClassVar[str] = "setting_text/2"

    form: Form
    written: tuple[Written, ...] = ()
    calls_torchrun: bool = False
    job: Launch | None = None  # what the lines for the scheduler ask for
    launches: tuple[Launch, ...] = ()  # in their order
    unchecked: tuple[Unchecked, ...] = ()  # lines that start ranks, maybe, and were not understood
    unread: tuple[Unchecked, ...] = ()  # other lines
    header_faults: tuple[HeaderFault, ...] = ()
    torch: str | None = None  # the releases in the output of torch.utils.collect_env
    nccl: str | None = None
    rocm: str | None = None

    def in_force(self) -> dict[str, Written]:
        """By name, the one that counts."""
        return {written.name: written for written in self.written if written.void is None}

    def possible(self) -> dict[str, tuple[Written, ...]]:
        """By name, all that may count, the last first: which, depends on the branches that a script takes."""
        found: dict[str, tuple[Written, ...]] = {}
        for written in reversed(self.written):
            later = found.get(written.name, ())
            if written.void is None and not any(written.path[: len(earlier.path)] == earlier.path for earlier in later):
                found[written.name] = (*later, written)
        return found


#: ``set``: in that process, which was started without it; ``given``: that process, of another user, may have set it
#: or had it itself; ``first``: that process, the first of its tree, was started with it.
How = Literal["set", "given", "first"]


class Origin(Frozen):
    """Since when a variable has its value."""

    how: How
    process: str  # its name, of at most 15 letters
    pid: int


class SettingOrigins(Fact):
    """Since when the environment's variables have their values, and which file of a login says so."""

    KIND: ClassVar[str] = "setting_origins/1"

    origins: dict[str, Origin] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)  # PATH:LINE that sets the same value
