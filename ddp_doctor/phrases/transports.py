"""What rules about NCCL's transports say of rates, and what mends a way that is not taken."""

from collections.abc import Sequence

from ddp_doctor.model.finding import NOTHING_TO_UNDO, Proof, Remedy, Setting

_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"
#: NCCL's own words for its transports, for a sentence.
NAMES = {"P2P": "direct copies (P2P)", "SHM": "shared memory (SHM)", "NET": "the network (NET)"}
#: A finding shows no more pairs of GPUs.
MOST_PAIRS = 6


def pair_names(pairs: Sequence[tuple[str, str]]) -> str:
    """ "GPU0-GPU1, GPU2-GPU3 and 10 more"."""
    names = ["-".join(pair) for pair in dict.fromkeys(pairs)]
    more = f" and {len(names) - MOST_PAIRS} more" if len(names) > MOST_PAIRS else ""
    return ", ".join(names[:MOST_PAIRS]) + more


def rate(gb_per_s: float | None) -> str:
    """ " (371 GB/s)", or nothing."""
    return "" if gb_per_s is None else f" ({gb_per_s:.0f} GB/s)"


def price(fast: float | None, slow: float | None) -> str:
    """What a detour costs, in a sentence, as far as both rates are known and differ."""
    if fast is None or slow is None or slow >= fast:
        return ""
    return f" By NCCL's own constants {slow:.0f} GB/s remain of {fast:.0f} GB/s, one way."


def unset_setting(name: str, value: str, gains: str) -> Remedy:
    """Take a variable that forbids a transport out of the job's environment."""
    return Remedy(
        summary=f"Unset {name} unless it keeps the job from a fault; then repair that first",
        settings=(Setting(name=name, action="unset", why=gains),),
        cost="none, unless it was set against a hang or wrong data: then that returns",
        undo=f"export {name}={value}",
        proof=Proof(reason="no trial without this setting was recorded"),
        references=(f"{_GUIDE}env.html#{name.lower().replace('_', '-')}",),
    )


SHOW_CHOICE = Remedy(
    summary="Have NCCL say which way it takes and why, and compare it with the matrix",
    commands=(
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,SHM ddp-doctor run --only p2p",
        "nvidia-smi topo -p2p r",
        "nvidia-smi topo -p2p w",
    ),
    scope="node",
    undo=NOTHING_TO_UNDO,
    proof=Proof(reason="nothing is known that could be tried"),
    references=(_GUIDE + "troubleshooting.html",),
)

ONE_HOST_ID = Remedy(
    summary=(
        "Let all ranks of a machine have one host name and one /dev/shm (one container, or --ipc=host and"
        " --uts=host for all); NCCL_HOSTID must be the same for them, or unset"
    ),
    scope="job",
    cost="the containers see each other's shared memory",
    undo="start them as before",
    proof=Proof(reason="it takes other containers"),
    references=(_GUIDE + "env.html#nccl-hostid", _GUIDE + "troubleshooting.html#sharing-data"),
)
