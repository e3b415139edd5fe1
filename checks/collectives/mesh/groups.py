"""DD643, DD644, DD647: ranks with another mesh than the others, wrong results in a group, what was not tested."""

from collections.abc import Iterator

from ddp_doctor.facts.collectives import MeshFact
from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, mesh_typed
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import in_code
from ddp_doctor.remedies.nccl import against_wrong_sums
from ddp_doctor.remedies.torch_calls import DOCS
from ddp_doctor.wording.findings import NOBODY, proved
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, rank_culprits, rank_of, ranks_at
from ddp_doctor.wording.wrong_shares import Taken, share_evidence, whose_share

_ONE_MESH = in_code(
    "Give all ranks the same axes in the same order: the same --mesh on every node, and in the job a call of"
    " init_device_mesh that depends on no rank and on no variable of one node",
    references=(DOCS + "distributed.html#torch.distributed.device_mesh.init_device_mesh",),
)


@rule("DD643", "ranks-make-different-meshes", Severity.ERROR, MeshFact, explained_by=("DD790",))
def ranks_make_different_meshes(recording: Recording) -> Iterator[Draft]:
    """Ranks that were told another mesh than the others.

    Finds: Before any group is made the ranks compare the names, sizes and order of their axes over the control store.
        The ranks are named whose mesh is not that of more than half of all; of two halves nobody is.
    Why: Each rank makes the groups in the order of its own axes, and waits in each until all its members have come. In
        a job this hangs without a word of who differs.
    Remedy: The same axes in the same order on all ranks.
    See: https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.init_device_mesh
    """
    meshes = grouped((mesh_typed(rank.fact.mesh) or "none", rank) for rank in recording.facts(MeshFact))
    if len(meshes) < 2:
        return
    usual = max(meshes, key=lambda typed: len(meshes[typed]))
    others = [typed for typed in meshes if typed != usual]
    odd = [rank_of(rank) for typed in others for rank in meshes[typed]]
    is_clear = len(odd) < len(meshes[usual])
    same_axes = all(sorted(typed.split(",")) == sorted(usual.split(",")) for typed in others)
    what = "the groups of the mesh in another order" if same_axes else "another mesh"
    title = f"{capital(ranks_at(recording, odd))} would make {what}: {name_list(others)}, not {usual}"
    yield proved(
        rank_culprits(recording, MeshFact, odd) if is_clear else NOBODY,
        title if is_clear else f"The ranks would make different meshes: {' or '.join(meshes)}",
        [Evidence(text=f"{typed}: {ranks_at(recording, map(rank_of, ranks))}") for typed, ranks in meshes.items()],
        _ONE_MESH,
        detail="The ranks would wait for each other for ever, so no group was made.",
    )


@rule("DD644", "axis-of-mesh-is-wrong", Severity.ERROR, MeshFact, explained_by=("DD602", "DD622"))
def axis_of_mesh_is_wrong(recording: Recording) -> Iterator[Draft]:
    """A group of an axis in which a collective brings something else than what was given.

    Finds: Shares, and sums of them, that arrive otherwise than their senders are known to have given them, in the
        collectives that jobs call on an axis of this name, and in all-reduces on all axes at the same time. A rank is
        named where all that it gives, or all that it takes, is wrong in its group.
    Why: Parameters, gradients or activations are silently wrong.
    Remedy: GPUs: NCCL_P2P_DISABLE=1 tells whether peer-to-peer transfers corrupt data; then memory errors. Else the
        library: another NCCL or torch.
    See: nccl-tests, verifiable/: the same idea
    """
    taken = grouped(
        ((group.axis, group.members), Taken(rank_of(rank), group.wrong, tuple(group.sources)))
        for rank in recording.facts(MeshFact)
        for group in rank.fact.groups
    )
    faulty = {group: ranks for group, ranks in taken.items() if any(rank.wrong for rank in ranks)}
    causes = grouped(
        ((culprits, whose, culprits or group), group)  # a rank is named once, whatever its groups
        for group, ranks in faulty.items()
        for culprits, whose in [whose_share(recording, ranks)]
    )
    for (culprits, whose, _), groups in causes.items():
        axes, members = [*dict.fromkeys(axis for axis, _ in groups)], {rank for _, ranks in groups for rank in ranks}
        names = f"axes {name_list(axes)} of the mesh give" if len(axes) > 1 else f"axis {axes[0]} of the mesh gives"
        wrong = [(rank.rank, share) for group in groups for rank in faulty[group] for share in rank.wrong]
        yield proved(
            culprits,
            f"{capital(names)} wrong results among {ranks_at(recording, members)}: {whose}",
            [share_evidence(*each) for each in wrong[:6]],
            *against_wrong_sums(recording),
        )


@rule("DD647", "axis-of-mesh-not-tested", Severity.INFO, MeshFact)
def axis_of_mesh_not_tested(recording: Recording) -> Iterator[Draft]:
    """Collectives of an axis that the backend does not offer, or that did not fit the memory.

    Finds: What the backend refuses of the collectives that jobs call on an axis of this name, and those of which the
        values were tested, but no time, for want of memory.
    Why: A job that calls them would fail in the first; the others may be slow.
    Remedy: None; where the job needs them, another backend or release.
    See: docs/how-to/check-a-mesh.md
    """
    found = [group for rank in recording.facts(MeshFact) for group in rank.fact.groups]
    untested = {
        f"{TABLE[name].words} of axis {group.axis}": why for group in found for name, why in group.untested.items()
    }
    if untested:
        lines = [Evidence(text=f"{what}: {why}") for what, why in untested.items()]
        yield proved(NOBODY, f"Not tested, or not timed: {name_list([*untested])}", lines)
