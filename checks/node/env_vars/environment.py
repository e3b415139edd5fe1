"""What is wrong with an environment, in words: from the launch variables and the table of variables.

Each function yields one draft per cause, without the nodes, so that equal drafts of several nodes are one
finding.
"""

from collections.abc import Iterator, Mapping

from ddp_doctor.checks.node.env_vars import launch_variables
from ddp_doctor.facts.env_vars import EnvVars
from ddp_doctor.knowledge.launchers import Launcher
from ddp_doctor.knowledge.versions import dotted
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Remedy, Reproducer
from ddp_doctor.phrases.settings import NO_TRIAL, in_words, listed, set_to, setting_draft, shown, unset
from ddp_doctor.settings.effects import effects
from ddp_doctor.settings.interactions import conflicts, disagreeing
from ddp_doctor.settings.names import is_unknown, nearest
from ddp_doctor.settings.ranges import out_of_range
from ddp_doctor.settings.releases import RELEASES, Installed, is_gone, status_at
from ddp_doctor.settings.table import Variable, never_read, variables
from ddp_doctor.settings.trials import read_by
from ddp_doctor.settings.values import effective, misread
from ddp_doctor.views import settings_read
from ddp_doctor.views.settings_read import MisreadValue
from ddp_doctor.wording.nodes import in_words as in_a_sentence

Env = Mapping[str, str]


#: Of names that nobody knows, the evidence shows no more.
_STRANGE_SHOWN = 8
_LAUNCHERS = "neither torchrun nor srun nor mpirun"
_NO_LAUNCHER = "neither TORCHELASTIC_RUN_ID nor a SLURM step nor an Open MPI rank in the environment"
_STARTED_BY: dict[Launcher | None, str] = {
    "torchrun": "torchrun started this process, by TORCHELASTIC_RUN_ID",
    "slurm": "srun started this process, by SLURM_STEP_ID and SLURM_PROCID",
    "mpi": "mpirun started this process, by OMPI_COMM_WORLD_RANK",
    None: "torch/distributed/rendezvous.py reads them",
}
_PER_TASK = "Start the ranks with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in each task"
_MEETING = "set MASTER_ADDR to a name of node 0 that the others resolve, MASTER_PORT to a free port, both for all ranks"


def leftovers(seen: EnvVars) -> Iterator[Draft]:
    """Variables that make a process without a launcher take itself for one rank of a world."""
    env, complete = seen.variables, all(seen.variables.get(name) for name in launch_variables.RENDEZVOUS)
    if seen.is_written or seen.launcher is not None:
        return
    if seen.in_kubernetes and complete:  # a training operator sets all of them
        return
    names = launch_variables.leftovers(env, in_job=seen.in_kubernetes or "SLURM_JOB_ID" in env)
    pairs = {name: env[name] for name in names}
    if pairs:
        yield setting_draft(
            pairs,
            f"{listed(pairs)} {'is' if len(pairs) == 1 else 'are'} set, though {_LAUNCHERS} started this process",
            listed(pairs),
            _NO_LAUNCHER,
            unset(pairs, "left over from another launch"),
            detail=f"{launch_variables.consequence(env)} torchrun gives its workers values of its own.",
            severity=Severity.INFO if launch_variables.is_alone(env) else None,
            confidence=Confidence.LIKELY,
        )


def inconsistencies(seen: EnvVars) -> Iterator[Draft]:
    """Launch variables that are set in part, or that cannot be true together."""
    env, launcher = seen.variables, seen.launcher
    in_world = launcher is not None or seen.in_kubernetes
    lacking = launch_variables.missing(env, launcher) if in_world else ()
    if lacking:
        known = "TORCHELASTIC_RUN_ID" if launcher == "torchrun" else "RANK"
        text = f"{shown(known, env.get(known, ''))} is set, but not {', '.join(lacking)}"
        yield _inconsistent(env, lacking, text, launcher)
    sure = in_world and not lacking and bool(env.get("RANK"))
    for fault in launch_variables.faults(env, launcher):
        # Outside a world, ranks and sizes are leftovers, which are reported with what is wrong in them.
        if in_world or set(fault.names) <= {"MASTER_ADDR", "MASTER_PORT"}:
            severity = Severity.ERROR if fault.fatal and sure else None
            yield _inconsistent(env, fault.names, fault.text, launcher, severity)


def _inconsistent(
    env: Env, names: tuple[str, ...], text: str, launcher: Launcher | None, severity: Severity | None = None
) -> Draft:
    told = ("TORCHELASTIC_RUN_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
    saw = {
        name: env[name]
        for name in dict.fromkeys((*names, *launch_variables.RENDEZVOUS, *told))
        if name in env
    }
    return setting_draft(
        names,
        text,
        listed(saw),
        _STARTED_BY[launcher],
        in_words(_MEETING if set(names) <= {"MASTER_ADDR", "MASTER_PORT"} else _PER_TASK),
        detail='A script that reads them, as init_process_group("env://") does, does not find its peers.',
        severity=severity,
    )


def too_few_gpus(seen: EnvVars) -> Iterator[Draft]:
    """A local rank past the end of CUDA_VISIBLE_DEVICES, or more local ranks than it lists."""
    env = seen.variables
    count = launch_variables.visible(env.get("CUDA_VISIBLE_DEVICES", ""))
    needed = {"LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 0}  # what to add for a number of GPUs
    if count == 1:  # maybe each task has a GPU of its own
        del needed["LOCAL_WORLD_SIZE"]
    for name, more in needed.items():
        value = env.get(name, "")
        if seen.launcher and count and value.isdecimal() and int(value) + more > count:
            title = f"{shown(name, value)} needs {int(value) + more} GPUs, CUDA_VISIBLE_DEVICES shows {count}"
            pairs = {name: value, "CUDA_VISIBLE_DEVICES": env["CUDA_VISIBLE_DEVICES"]}
            remedy = in_words(
                "Start one rank per visible GPU, or list more GPUs; with one GPU per task use device 0"
            )
            why = "torch.cuda.set_device(LOCAL_RANK) counts through the visible GPUs"
            detail = 'It fails with "invalid device ordinal", unless ranks share a GPU or use the CPU.'
            sure = Confidence.LIKELY
            yield setting_draft(pairs, title, listed(pairs), why, remedy, detail=detail, confidence=sure)
            return


#: Where launchers other than torchrun say which rank a process is, in the whole job and on its node.
_PLACES: dict[Launcher | None, tuple[str, str]] = {
    "slurm": ("SLURM_PROCID", "SLURM_LOCALID"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
}


def another_gpu(seen: EnvVars, gpus: int | None) -> Iterator[Draft]:
    """A rank whose NCCL group takes another GPU than its number on the node; ``gpus`` is how many the node has."""
    env = seen.variables
    if seen.launcher not in _PLACES:
        return
    in_job, on_node = _PLACES[seen.launcher]
    visible = launch_variables.visible(env["CUDA_VISIBLE_DEVICES"]) if "CUDA_VISIBLE_DEVICES" in env else gpus
    rank, local_rank = env.get("RANK") or env.get(in_job, ""), env.get(on_node, "")
    taken = env.get("LOCAL_RANK", rank)
    if not visible or not (taken.isdecimal() and local_rank.isdecimal()):
        return
    group_gpu, own_gpu = int(taken) % visible, int(local_rank) % visible
    if group_gpu == own_gpu:
        return
    chosen_by = "LOCAL_RANK" if "LOCAL_RANK" in env else "RANK" if env.get("RANK") else in_job
    pairs = {name: env[name] for name in (chosen_by, on_node)}
    yield setting_draft(
        pairs,
        f"The NCCL group of local rank {local_rank} takes GPU {group_gpu}: {shown(chosen_by, taken)} modulo"
        f" {visible} visible GPUs",
        listed(pairs),
        "torch 2.15 torch/distributed/distributed_c10d.py, _nccl2_device",
        in_words(
            f"Pass device_id to init_process_group, or set LOCAL_RANK in each task: export LOCAL_RANK=${on_node}"
        ),
        detail="torch.cuda.set_device() does not decide this with the backend nccl2; a script that passes device_id or"
        " sets LOCAL_RANK itself is not concerned.",
        confidence=Confidence.POSSIBLE,
    )


def torchrun_options(seen: EnvVars) -> Iterator[Draft]:
    """Options of torchrun in a plain shell's environment."""
    env = seen.variables
    defaults = {name: {variables()[name].default, ""} for name in launch_variables.REDIRECTING}
    pairs = {name: env[name] for name in defaults if env.get(name, "") not in defaults[name]}
    if seen.is_written:
        return
    if pairs and seen.launcher is None and not seen.in_kubernetes and "SLURM_JOB_ID" not in env:
        title = f"torchrun takes {listed(pairs)} from the environment for options"
        detail = "Left over from another job, they make torchrun wait for other nodes or meet elsewhere."
        remedy = unset(pairs, "an option of torchrun")
        source, sure = "torch/distributed/argparse_util.py", Confidence.LIKELY
        yield setting_draft(pairs, title, listed(pairs), source, remedy, detail=detail, confidence=sure)


def misspelled(seen: EnvVars, installed: Installed) -> Iterator[Draft]:
    """Names one slip away from a variable that some release reads."""
    for name, value in (env := seen.variables).items():
        meant = nearest(name) if is_unknown(name) else None
        if meant is None:
            continue
        wrong = misread(meant, value)
        better = wrong.instead if wrong and wrong.instead else value
        why = f"{name} is read by nothing"
        yield setting_draft(
            (name,),
            f"{name} is read by nothing; did you mean {meant}?",
            shown(name, value),
            f"not among the variables of {RELEASES}",
            set_to(meant, better, why, (name, value))
            if meant not in env and installed.reads(meant)
            else unset({name: value}, why),
            detail=f"So {shown(meant, env[meant])} stands."
            if meant in env
            else f"So {meant} keeps its default.",
            confidence=Confidence.LIKELY,
            severity=Severity.INFO if env.get(meant) == value else None,
        )


def unread(seen: EnvVars) -> Iterator[Draft]:
    """Names that nothing reads, and names that nobody knows."""
    for name, value in seen.variables.items():
        never = never_read().get(name)
        if never:
            yield setting_draft(
                (name,),
                f"{name} is read by nothing",
                shown(name, value),
                never.source,
                unset({name: value}, "read by nothing", _see(name, never.instead)),
                detail=f"Meant is {never.meant}.",
            )
    strange = {name: value for name, value in seen.variables.items() if _is_strange(name)}
    if strange:
        are = "is not a known variable" if len(strange) == 1 else "are not known variables"
        yield setting_draft(
            strange,
            f"{in_a_sentence(list(strange))} {are}",
            listed(dict(list(strange.items())[:_STRANGE_SHOWN])),
            f"not among the variables of {RELEASES}",
            detail=f"A plug-in may read {'it' if len(strange) == 1 else 'them'}.",
            severity=Severity.INFO,
            confidence=Confidence.POSSIBLE,
        )


def _is_strange(name: str) -> bool:
    return name not in never_read() and is_unknown(name) and not name.startswith("PET_") and not nearest(name)


def _see(name: str, instead: str | None) -> str:
    return f"unset {name}; see {instead}" if instead else f"unset {name}"


#: Obsolete settings that ask for what NCCL does today, so that nobody waits for their effect in vain.
_TODAYS_WAY = {
    ("NCCL_IB_CUDA_SUPPORT", "1"),
    ("NCCL_CHECKS_DISABLE", "1"),
    ("TORCH_NCCL_AVOID_RECORD_STREAMS", "1"),
}
#: Settings of newer releases that ask for what the older ones do.
_EARLIER_WAY = {("TORCH_DIST_USE_NCCL2", "0")}


def obsolete(seen: EnvVars, installed: Installed) -> Iterator[Draft]:
    """Names of older releases; information where the installed one, or some release of interest, still reads them."""
    for name, value in seen.variables.items():
        old = variables().get(name)
        if old is None or old.status == "active" or name in disagreeing(seen.variables, installed):
            continue
        at, library = installed.of(old), _library(old)
        until = f"not read after {library} {old.last}" if old.last else "deprecated, though still read"
        title = (
            f"{name} is {until}; {old.replaced_by} took its place"
            if old.replaced_by
            else f"{name} is {until}"
        )
        gone = status_at(old, at) != "read" if at else is_gone(old)
        if not gone and (effects(name, value) or out_of_range(name, seen.variables, installed.nccl)):
            continue  # told to go for what it does
        if not gone and old.replaced_by and not installed.reads(old.replaced_by):
            continue  # the old name is the one to use here
        yield setting_draft(
            (name,),
            f"{title}, and {library} {dotted(at)} is {_THERE[library]}" if at and gone else title,
            shown(name, value),
            old.source,
            _renamed(seen.variables, old, value, installed),
            severity=None if gone and (name, value) not in _TODAYS_WAY else Severity.INFO,
        )


#: What is said of a library that is there.
_THERE = {"NCCL": "loaded", "torch": "installed"}


def _library(variable: Variable) -> str:
    return "NCCL" if variable.owner == "nccl" else "torch"


def not_yet_read(seen: EnvVars, installed: Installed) -> Iterator[Draft]:
    """Names of newer releases than the installed one."""
    for name, value in seen.variables.items():
        new = variables().get(name)
        at = installed.of(new) if new else ()
        if not at or new is None or status_at(new, at) != "not yet":
            continue
        minor = (
            name.startswith("NCCL_DEBUG") or effective(name, value) is None or (name, value) in _EARLIER_WAY
        )
        library = _library(new)
        since = f"read from {library} {new.first} on"
        a_torch = "a torch with NCCL" if library == "NCCL" else "torch"
        yield setting_draft(
            (name,),
            f"{name} is {since}; {library} {dotted(at)} is {_THERE[library]}",
            shown(name, value),
            new.source,
            unset({name: value}, since, f"Unset {name}, or install {a_torch} {new.first} or newer"),
            detail="The setting has no effect.",
            severity=Severity.INFO if minor else None,
        )


def _renamed(env: Env, old: Variable, value: str, installed: Installed) -> Remedy:
    new = variables().get(old.replaced_by or "")
    if new and new.type == old.type and new.name not in env and installed.reads(new.name):
        summary = f"Set {new.name} in the place of {old.name}"
        return set_to(new.name, value, f"replaces {old.name}", (old.name, value), summary)
    return unset({old.name: value}, "obsolete", _see(old.name, old.replaced_by))


def misread_values(seen: EnvVars, installed: Installed) -> Iterator[Draft]:
    """Values that do not do what they say."""
    told = {name for found in conflicts(seen.variables, ()) if found.fails(()) for name in found.names}
    for value in settings_read.misread_values(seen.variables, installed):
        if value.found.fate == "misread" and value.variable.name not in told:
            yield _value(value, Severity.INFO if value.found.harmless else None)


def refused_values(backend: str, seen: EnvVars, installed: Installed) -> Iterator[Draft]:
    """Values on which torch stops or hangs; a warning where only another backend, or torchrun, reads them."""
    for value in settings_read.misread_values(seen.variables, installed):
        if value.found.fate != "misread":
            sure = value.stops(backend)
            draft = _value(value, None if sure else Severity.WARNING)
            yield _reproduced_by_ranks(draft) if sure and read_by(value.variable.name) == backend else draft


def _reproduced_by_ranks(draft: Draft) -> Draft:
    """The same as trials can show it: with such a value the ranks do not even meet."""
    remedies = tuple(one.model_copy(update={"proof": NO_TRIAL}) for one in draft.remedies)
    return draft.model_copy(update={"remedies": remedies, "reproduced_by": Reproducer(kind="meet")})


def _value(wrong: MisreadValue, severity: Severity | None) -> Draft:
    variable, value, found = wrong.variable, wrong.value, wrong.found
    name = variable.name
    if found.instead is None:
        remedy = unset({name: value}, found.becomes, f"unset {name}, or give it a value that is read")
    else:
        remedy = set_to(name, found.instead, found.why, (name, value))
    when = f" It is read by: {variable.read_when}." if variable.read_when else ""
    saw = shown(name, value)
    return setting_draft(
        (name,),
        f"{saw} {found.becomes}",
        saw,
        variable.source,
        remedy,
        detail=found.why + when,
        severity=severity,
    )
