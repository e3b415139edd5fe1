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
from ddp_doctor.wording.findings import NOBODY, likely, proved
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, rank_culprits, rank_of, ranks_at
from ddp_doctor.wording.wrong_shares import Taken, share_evidence, whose_share

_ONE_MESH = in_code(
    "Give all ranks the same axes in the same order: the same --mesh on every node, and in the job a call of"
    " init_device_mesh that depends on no rank and on no variable of one node",
    references=(DOCS + "distributed.html#torch.distributed.device_mesh.init_device_mesh",),
)


@rule("DD643", "ranks-make-different-meshes", Severity.ERROR, MeshFact)
def ranks_make_different_meshes(recording: Recording) -> Iterator[Draft]:
    """Ranks that were told another mesh than the others.

    Finds: Before any group is made the ranks compare the names, sizes and order of their axes over the control store.
        The ranks are named whose mesh is not that of more than half of all; of two halves nobody is.
    Why: Each rank makes the groups in the order of its own axes, and waits in each until all its members have come. In
        a job this hangs without a word of who differs.
    Remedy: The same axes in the same order on all ranks.
    See: https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.init_device_mesh
    """
    meshes = grouped((mesh_typed(rank.fact.mesh), rank) for rank in recording.facts(MeshFact))
    if len(meshes) < 2:
        return
    usual = max(meshes, key=lambda typed: len(meshes[typed]))
    all_ranks = sum(map(len, meshes.values()))
    is_clear = 2 * len(meshes[usual]) > all_ranks
    told = {typed: ranks_at(recording, map(rank_of, ranks)) for typed, ranks in meshes.items()}
    odd = [rank for typed, ranks in meshes.items() if typed != usual for rank in ranks]
    others = [typed for typed in meshes if typed != usual]
    same = all(sorted(typed.split(",")) == sorted(usual.split(",")) for typed in others)
    what = "the groups of the mesh in another order" if same else "another mesh"
    title = f"{capital(ranks_at(recording, map(rank_of, odd)))} would make {what}: {name_list(others)}, not {usual}"
    if not is_clear:
        title = f"The ranks would make {'' if same else 'groups of '}different meshes: {' or '.join(meshes)}"
    yield proved(
        rank_culprits(recording, MeshFact, map(rank_of, odd)) if is_clear else NOBODY,
        title,
        [Evidence(text=f"{typed}: {ranks}") for typed, ranks in told.items()],
        _ONE_MESH,
        detail="The ranks would wait for each other for ever, so no group was made.",
    )


@rule("DD644", "axis-of-mesh-is-wrong", Severity.ERROR, MeshFact, explained_by=("DD602", "DD622"))
def axis_of_mesh_is_wrong(recording: Recording) -> Iterator[Draft]:
    """A group of an axis in which a collective brings something else than what was given.

    Finds: Shares, and sums of them, that arrive otherwise than their senders are known to have given them, in the
        collectives that jobs call on an axis of this name; and sums that are wrong only while all axes are at work at
        the same time. A rank is named where all that it gives, or all that it takes, is wrong in its group.
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
    for (axis, members), ranks in taken.items():
        wrong = [share_evidence(rank.rank, share) for rank in ranks for share in rank.wrong]
        if wrong:
            culprits, whose = whose_share(recording, ranks)
            title = f"Axis {axis} of the mesh gives wrong results among {ranks_at(recording, members)}: {whose}"
            yield proved(culprits, title, wrong[:6], *against_wrong_sums(recording))
    at_once = [rank for rank in recording.facts(MeshFact) if rank.fact.wrong_at_once]
    if at_once and not any(share.wrong for ranks in taken.values() for share in ranks):
        yield likely(
            NOBODY,
            f"All-reduces on all axes at once are wrong on {ranks_at(recording, map(rank_of, at_once))}; on each axis"
            " alone they are right",
            [share_evidence(rank_of(rank), share) for rank in at_once for share in rank.fact.wrong_at_once][:6],
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
    found = recording.facts(MeshFact)
    groups = [group for rank in found for group in rank.fact.groups]
    refused = {(group.axis, name): why for group in groups for name, why in group.not_offered.items()}
    short = {(group.axis, name): "memory was short" for group in groups for name in group.short_of_memory}
    for what, missing in (("offered by the backend", refused), ("timed", short)):
        if missing:
            names = [f"{TABLE[name].words} of axis {axis}" for axis, name in missing]
            lines = [Evidence(text=f"{name} of axis {axis}: {why}") for (axis, name), why in missing.items()]
            yield proved(NOBODY, f"Not {what}: {name_list(names)}", lines)
