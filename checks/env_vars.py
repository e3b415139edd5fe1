"""The environment: launch variables, and the variables of NCCL, torch, gloo and torchrun.

A job believes its environment without a word. A RANK left over from yesterday makes a script wait for seven
ranks that nobody starts; NCCL_IB_DISABLE=true does not disable InfiniBand; NCCL_TIMEOUT is read by nothing.
Raw input; only such names are recorded, and no value that looks like a credential::

    RANK=3 MASTER_PORT=29500 PET_NNODES=2 NCCL_IB_DISABLE=true NCCL_SOCKET_IFNAM=eth0 LOGLEVEL=debug
"""

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from ddp_doctor.knowledge import variables
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Severity, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.redact import open_and_withheld
from ddp_doctor.parse.setting_origins import SettingOrigins
from ddp_doctor.parse.setting_text import SettingText
from ddp_doctor.phrases import environment, launchers
from ddp_doctor.phrases.settings import one_per_cause


class EnvVars(Fact):
    """The variables that matter to a DDP job, as the doctor's own process inherited them."""

    KIND: ClassVar[str] = "env_vars/1"

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()  # set, but like a credential, or too long for a setting
    launcher: launchers.Launcher | None = None  # whose worker this process is
    in_kubernetes: bool = False
    is_written: bool = False  # by somebody for a job, in a script or manifest: nothing of it is left over


def probe(ctx: Context) -> EnvVars:
    """Read the environment. Never fails; an empty one is an answer too."""
    told = {
        name: value
        for name, value in ctx.env.items()
        if variables.is_recorded(name) or name in launchers.OTHERS
    }
    known, withheld = open_and_withheld(told)
    return EnvVars(
        variables=known,
        withheld=withheld,
        launcher=launchers.launcher_of(ctx.env),
        in_kubernetes="KUBERNETES_SERVICE_HOST" in ctx.env,
    )


@rule("DD101", "leftover-launch-variables", Severity.WARNING, EnvVars)
def leftover_launch_variables(recording: Recording) -> Iterable[Draft]:
    """Variables of a launcher in a process that no launcher started.

    What it finds
        RANK, LOCAL_RANK, WORLD_SIZE and their like. Information only where they describe a world of one.

    Why it matters
        A script started by hand believes them and fails, or waits for ranks that nobody starts. torchrun gives
        its workers values of its own; srun and mpirun pass leftovers on to every task.

    Remedy
        Unset them, unless you start each rank by hand or with another launcher.

    References
        torch/distributed/rendezvous.py, _env_rendezvous_handler
    """
    return one_per_cause(recording, EnvVars, environment.leftovers)


@rule("DD102", "launch-variables-inconsistent", Severity.WARNING, EnvVars)
def launch_variables_inconsistent(recording: Recording) -> Iterable[Draft]:
    """Launch variables that are set in part, or that cannot be true together.

    What it finds
        RANK without WORLD_SIZE, MASTER_ADDR or MASTER_PORT; a rank outside its world; text for a number; an
        impossible port or address; a loopback MASTER_ADDR in a job of several nodes; a RANK that is not the
        task's own. An error where init_process_group("env://") must fail.

    Why it matters
        The rank fails at once, or waits for the store until its time-out, and its peers wait with it.

    Remedy
        Let torchrun set them, or set all of them for each task from the launcher's own variables.

    References
        https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    return one_per_cause(recording, EnvVars, environment.inconsistencies)


@rule("DD103", "local-rank-beyond-visible-gpus", Severity.WARNING, EnvVars)
def local_rank_beyond_visible_gpus(recording: Recording) -> Iterable[Draft]:
    """More ranks on the node than CUDA_VISIBLE_DEVICES shows GPUs.

    What it finds
        A LOCAL_RANK or LOCAL_WORLD_SIZE above its length; an empty list (the CPU) and one GPU per task pass.

    Why it matters
        torch.cuda.set_device(LOCAL_RANK) fails with "invalid device ordinal", or ranks share a GPU.

    Remedy
        Start one rank per visible GPU, or list more; with one GPU per task use device 0.

    References
        https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
    """
    return one_per_cause(recording, EnvVars, environment.too_few_gpus)


@rule("DD104", "torchrun-options-left-behind", Severity.WARNING, EnvVars)
def torchrun_options_left_behind(recording: Recording) -> Iterable[Draft]:
    """PET_* variables in a plain shell, which torchrun takes for options.

    What it finds
        PET_NNODES, PET_RDZV_ENDPOINT and the like outside a batch job, a pod and a launcher's world.

    Why it matters
        Unless the command line says otherwise, torchrun waits for their nodes or meets at their endpoint.

    Remedy
        Unset them, or put the options on the command line.

    References
        torch/distributed/argparse_util.py
    """
    return one_per_cause(recording, EnvVars, environment.torchrun_options)


@rule("DD111", "variable-misspelled", Severity.WARNING, EnvVars)
def variable_misspelled(recording: Recording) -> Iterable[Draft]:
    """A variable that nothing reads and that is one slip away from one that is read.

    What it finds
        A wrong letter or case, words in another order, a forgotten part. Names of known plug-ins are left alone.

    Why it matters
        The setting has no effect, and nothing says so.

    Remedy
        Set the variable that is read, and unset the other.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    return one_per_cause(recording, EnvVars, environment.misspelled)


@rule("DD112", "variable-read-by-nothing", Severity.WARNING, EnvVars)
def variable_read_by_nothing(recording: Recording) -> Iterable[Draft]:
    """A variable that is passed on from script to script although no release ever read it.

    What it finds
        Names such as NCCL_TIMEOUT. Information only for names that nobody knows: a plug-in may read those.

    Why it matters
        The setting has no effect, and somebody relies on it.

    Remedy
        Unset it, and set what was meant.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    return one_per_cause(recording, EnvVars, environment.unread)


@rule("DD113", "variable-obsolete", Severity.WARNING, EnvVars)
def variable_obsolete(recording: Recording) -> Iterable[Draft]:
    """A variable from an older release.

    What it finds
        Names that no NCCL bundled with torch 2.4 or later reads. Information only where one still does.

    Why it matters
        The setting has no effect, now or after the next upgrade.

    Remedy
        Set what replaced it, and unset the old name.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    return one_per_cause(recording, EnvVars, environment.obsolete)


@rule("DD121", "value-read-otherwise", Severity.WARNING, EnvVars)
def value_read_otherwise(recording: Recording) -> Iterable[Draft]:
    """A value that does not do what it says.

    What it finds
        NCCL_IB_DISABLE=true (read as 0), NCCL_BUFFSIZE=4M (4 bytes), NCCL_P2P_LEVEL=sys (ignored),
        NCCL_DEBUG_FILE with %r, patterns among interface names, quotes that became part of the value.
        Information only where the value is empty, or logs alone suffer.

    Why it matters
        The library takes something else, or its default, and says nothing.

    Remedy
        Write the value as the library reads it.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    return one_per_cause(recording, EnvVars, environment.misread_values)


@rule("DD122", "value-refused", Severity.ERROR, EnvVars)
def value_refused(recording: Recording) -> Iterable[Draft]:
    """A value on which torch, gloo or torchrun stops.

    What it finds
        TORCH_NCCL_BLOCKING_WAIT=on, TORCH_DISTRIBUTED_DEBUG=1, GLOO_SOCKET_IFNAME=^lo, LOGLEVEL=debug.
        A warning only where torchrun, or another backend than this run's, reads it.

    Why it matters
        The job ends before its first step, or hangs in init_process_group (TORCH_FR_BUFFER_SIZE=many).

    Remedy
        Write one of the values that are accepted, or unset the variable.

    References
        torch/csrc/distributed/c10d/Utils.hpp, getCvarBool and getCvarInt
    """
    backend = recording.world.backend if recording.world else ""
    return one_per_cause(recording, EnvVars, partial(environment.refused_values, backend))


CHECK = Check(
    id="env_vars",
    title="Environment variables",
    where=Where.NODE,
    probe=probe,
    facts=(EnvVars, SettingText, SettingOrigins),
    rules=(
        leftover_launch_variables,
        launch_variables_inconsistent,
        local_rank_beyond_visible_gpus,
        torchrun_options_left_behind,
        variable_misspelled,
        variable_read_by_nothing,
        variable_obsolete,
        value_read_otherwise,
        value_refused,
    ),
    cost_s=0.01,
)
