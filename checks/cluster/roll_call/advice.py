"""What the findings of the roll call advise. The doctor tries none of it itself; each remedy says why."""

from collections.abc import Sequence
from functools import partial

from ddp_doctor.model.finding import NOTHING_TO_UNDO, Proof, Remedy, Scope

ANOTHER_START = Proof(reason="it takes another start on those hosts")
_OWNER_OF_HOST = Proof(reason="it takes somebody who may change that host or the network")
_LOOK_FIRST = Proof(reason="somebody has to look at the host or the network first")


def advice(
    summary: str,
    *commands: str,
    scope: Scope,
    proof: Proof,
    cost: str = "none: it only looks",
    undo: str = NOTHING_TO_UNDO,
) -> Remedy:
    """A remedy that a person carries out; without a cost it changes nothing."""
    return Remedy(summary=summary, commands=commands, scope=scope, cost=cost, undo=undo, proof=proof)


#: For a host or network that stands in the way of the roll call.
mend = partial(advice, proof=_OWNER_OF_HOST)
#: For a host or network that failed after the roll call.
look_at = partial(advice, proof=_LOOK_FIRST)
#: For a command that was started with the wrong options, or not at all.
start_again = partial(
    advice, scope="job", proof=ANOTHER_START, cost="none", undo="start with the former options"
)

#: Where one command starts all nodes, nobody types anything on the others: what to do instead.
LAUNCHERS = {
    "ssh": "ssh was to start it there: see whether ssh works, then type the same command here again",
    "slurm": "srun was to start it there: see the state of the node and what srun printed, then run it again",
    "kubernetes": "See what became of the pod, then start the job again",
    "mpi": "mpirun was to start it there: see what mpirun printed, then run it again",
}
_LOOKS = {
    "ssh": ("ssh -o BatchMode=yes {} true",),
    "slurm": ("scontrol show node {}",),
    "kubernetes": ("kubectl describe pod {}", "kubectl logs {}"),
}


def looks(launcher: str, hosts: Sequence[str]) -> list[str]:
    """What to type to look at hosts on which the launcher was to start the command; a pod goes by its short name."""
    names = [host.partition(".")[0] if launcher == "kubernetes" else host for host in hosts[:4]]
    return [look.format(name) for name in names for look in _LOOKS.get(launcher, ())]


def launch_again(launcher: str, hosts: Sequence[str], *commands: str) -> Remedy:
    """For hosts on which one of LAUNCHERS was to start the command."""
    seen = looks(launcher, hosts)
    return advice(LAUNCHERS[launcher], *seen, *commands, scope="cluster", proof=ANOTHER_START)
