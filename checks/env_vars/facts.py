"""What is recorded of a process's environment."""

from typing import ClassVar

from ddp_doctor.model.fact import Fact
from ddp_doctor.phrases import launchers


class EnvVars(Fact):
    """The variables that matter to a DDP job, as the doctor's own process inherited them."""

    KIND: ClassVar[str] = "env_vars/1"

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()  # set, but like a credential, or too long for a setting
    launcher: launchers.Launcher | None = None  # whose worker this process is
    in_kubernetes: bool = False
    is_written: bool = False  # by somebody for a job, in a script or manifest: nothing of it is left over
