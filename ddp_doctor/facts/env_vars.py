"""What a process's environment says of its launch and of the libraries' settings."""

from typing import ClassVar, Literal

from ddp_doctor.model.fact import Fact

#: Who starts ranks and tells each its place by variables of its own.
Launcher = Literal["torchrun", "slurm", "mpi"]


class EnvVars(Fact):
    """The variables that matter to a DDP job, as the doctor's own process inherited them."""

    KIND: ClassVar[str] = "env_vars/1"

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()  # set, but like a credential, or too long for a setting
    launcher: Launcher | None = None  # whose worker this process is
    in_kubernetes: bool = False
    is_written: bool = False  # by somebody for a job, in a script or manifest: nothing of it is left over
