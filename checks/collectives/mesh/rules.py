"""DD643 - DD647: meshes that differ between ranks, wrong results in a group, axes on slow links, untested axes."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from math import prod
from statistics import mean
from typing import NamedTuple

from ddp_doctor.facts.collectives import MeshFact
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.axes import KINDS, depth
from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.knowledge.severity import of_slowdown
from ddp_doctor.knowledge.topology.link_codes import link_code
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Axis, Recording, World, mesh_typed, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import in_code, remedy
from ddp_doctor.remedies.nccl import against_wrong_sums
from ddp_doctor.remedies.torch_calls import DOCS
from ddp_doctor.views.gpus import gpu_of
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, likely, possible, proved
from ddp_doctor.wording.nodes import name_list
from ddp_doctor.wording.ranks import capital, rank_culprits, rank_list, rank_of, ranks_at
from ddp_doctor.wording.wrong_shares import Taken, shares_evidence, whose_share

_ONE_MESH = in_code(
    "Use the same axes in the same order on all ranks: the same --mesh on every node, and a"
    " call of init_device_mesh in the job that depends on no rank and on no variable of one"
    " node",
    references=(DOCS + "distributed.html#torch.distributed.device_mesh.init_device_mesh",),
)


@rule("DD643", "ranks-make-different-meshes", Consequence.HANGS, MeshFact, explained_by=("DD790",))
def ranks_make_different_meshes(recording: Recording) -> Iterator[Draft]:
    """Ranks have a different mesh than the others.

    Finds: Before any group is created, the ranks compare the names, sizes and order of their axes over the control
        store. Reports the ranks whose mesh differs from the majority's. If there is no majority, no rank is named.
    Why: Each rank creates the groups in the order of its own axes, and waits in each until all members arrive. A job
        then hangs without showing which ranks differ.
    Remedy: Use the same axes in the same order on all ranks.
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
    what = "the mesh groups in a different order" if same_axes else "a different mesh"
    title = f"{capital(ranks_at(recording, odd))} would create {what}: {name_list(others)}, not {usual}"
    yield proved(
        rank_culprits(recording, MeshFact, odd) if is_clear else NOBODY,
        title if is_clear else f"The ranks would create different meshes: {' or '.join(meshes)}",
        [Evidence(text=f"{typed}: {ranks_at(recording, map(rank_of, ranks))}") for typed, ranks in meshes.items()],
        _ONE_MESH,
        detail="The ranks would hang, so no group was made.",
    )


@rule("DD644", "axis-of-mesh-is-wrong", Consequence.WRONG, MeshFact, explained_by=("DD602", "DD622"))
def axis_of_mesh_is_wrong(recording: Recording) -> Iterator[Draft]:
    """A collective in a group of an axis returns different data than the ranks sent.

    Finds: Reports shares, and sums of them, that arrive different from what their senders are known to have sent, in
        the collectives that jobs call on an axis of this name, and in all-reduces on all axes at the same time. A rank
        is named if all data that it sends, or all data that it receives, is wrong in its group.
    Why: Parameters, gradients or activations are silently wrong.
    Remedy: On GPUs, set NCCL_P2P_DISABLE=1 to test whether peer-to-peer transfers corrupt data, then check for memory
        errors. Otherwise, the library is the likely cause: try another NCCL or torch.
    See: nccl-tests, verifiable/: the same idea
    """
    taken = grouped(
        ((group.axis, group.members), Taken(rank_of(rank), group.wrong, tuple(group.sources)))
        for rank in recording.facts(MeshFact)
        for group in rank.fact.groups
    )
    faulty = {group: ranks for group, ranks in taken.items() if any(rank.wrong for rank in ranks)}
    causes = grouped(
        ((culprits, whose, culprits or group), group)  # names a rank only once, whatever its groups
        for group, ranks in faulty.items()
        for culprits, whose in [whose_share(recording, ranks)]
    )
    for (culprits, whose, _), groups in causes.items():
        axes, members = [*dict.fromkeys(axis for axis, _ in groups)], {rank for _, ranks in groups for rank in ranks}
        names = f"axes {name_list(axes)}" if len(axes) > 1 else f"axis {axes[0]}"
        wrong = [(rank.rank, share) for group in groups for rank in faulty[group] for share in rank.wrong]
        yield proved(
            culprits,
            f"Collectives on mesh {names} return wrong results among {ranks_at(recording, members)}: {whose}",
            islice(shares_evidence(wrong), 6),
            *against_wrong_sums(recording),
        )


#: An axis is slower than another if it reaches less than this share of its rate in all collectives. In 14 runs of 4 and
#: 8 gloo ranks on two busy cores, axes with equal links reached at least 0.43 of each other; over 100 Mbit/s it is
#: 0.01.
_AS_FAST = 0.4


class Reach(NamedTuple):
    """The longest path between two ranks of a group; smaller is nearer."""

    nodes: int = 1
    distance: int = 0  # of the link within a node
    words: str = "stays in a node"


def groups_of(mesh: Sequence[Axis], axis: Axis) -> list[tuple[int, ...]]:
    """Return the groups of an axis, as init_device_mesh makes them: ranks row by row, neighbors on the last axis."""
    at = list(mesh).index(axis)
    stride, ranks = prod(inner.size for inner in mesh[at + 1 :]), prod(each.size for each in mesh)
    firsts = [rank for rank in range(ranks) if rank // stride % axis.size == 0]
    return [tuple(first + place * stride for place in range(axis.size)) for first in firsts]


@once_a_recording
def _mesh(recording: Recording) -> Sequence[Axis]:
    """Return the axes; empty if the ranks made no groups, or if a model's mesh has its own order of ranks."""
    facts = [rank.fact for rank in recording.facts(MeshFact)]
    mesh = facts[0].mesh if facts and facts[0].made else ()
    usual = {axis.name: groups_of(mesh, axis) for axis in mesh}
    in_order = all(group.members in usual[group.axis] for fact in facts for group in fact.groups)
    return mesh if in_order else ()


def _reach(recording: Recording, world: World, groups: Sequence[Sequence[int]]) -> Reach:
    """Return the reach across nodes, or by the link within one node if its matrix is known."""
    if any(len({world.node_of(rank) for rank in group}) > 1 for group in groups):
        return Reach(2, words="crosses nodes")
    codes = {
        (node.node, frozenset(ends)): code
        for node in recording.facts(TopologyFact)
        for *ends, code in node.fact.gpu_pairs()
    }
    pairs = [pair for group in groups if codes for pair in combinations(group, 2)]
    ends = [(world.node_of(pair[0]), frozenset(f"GPU{gpu_of(recording, rank)}" for rank in pair)) for pair in pairs]
    links = [(link_code(codes[each]).distance, codes[each]) for each in ends if each in codes]
    return max((Reach(1, distance, f"goes over {code}") for distance, code in links), default=Reach())


def _busbw(recording: Recording, axis: Axis) -> Mapping[str, float]:
    """Return the GB/s of an axis by collective, the mean of all ranks."""
    rates = grouped(
        (name, size.busbw_gb_per_s)
        for rank in recording.facts(MeshFact)
        for group in rank.fact.groups
        if group.axis == axis.name
        for name, size in group.sizes.items()
    )
    return {name: mean(of_name) for name, of_name in rates.items()}


def _depth(axis: Axis) -> int:
    """Return the depth of an axis with a known name."""
    return depth(axis.name) or 0


@rule("DD645", "axis-goes-over-slower-links", Consequence.SLOWER, MeshFact, explained_by=("DD646",))
def axis_goes_over_slower_links(recording: Recording) -> Iterator[Draft]:
    """An axis that sends in every layer uses slower links than an axis that sends once per step.

    Finds: Axes are ordered by their names (pp, dp, shard, ep, cp, tp, from outside to inside, and their other names).
        Reports an axis whose groups cross nodes, or links farther than NVLink within one node, although it belongs
        further inside than another axis whose groups do not, if another order of the axes would bring it nearer. Not
        reported if the axis is measured to be as fast, as in a rack whose nodes NVLink connects.
    Why: FSDP gathers the parameters of each layer twice per step, and tensor parallelism sends activations several
        times in each layer. Gradients are reduced once.
    Remedy: Move the axis further inside: the last axis of init_device_mesh connects neighboring ranks.
    See: docs/how-to/check-a-mesh.md
        https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.init_device_mesh
    """
    mesh, world = _mesh(recording), recording.world
    if world is None:
        return
    known = sorted((axis for axis in mesh if depth(axis.name) is not None), key=_depth)
    inwards = iter(known)  # axes with other names keep their place
    better = tuple(next(inwards) if axis in known else axis for axis in mesh)
    wide = [axis for axis in known if axis.size > 1]
    reaches = {axis: _reach(recording, world, groups_of(mesh, axis)) for axis in wide}
    for heavy, light in combinations(reversed(wide), 2):
        now, then = reaches[heavy], _reach(recording, world, groups_of(better, heavy))
        if _depth(heavy) == _depth(light) or now[:2] <= max(reaches[light][:2], then[:2]):
            continue
        of_heavy, of_light = _busbw(recording, heavy), _busbw(recording, light)
        times = [of_light[name] / of_heavy[name] for name in of_heavy if name in of_light]
        if not all(_AS_FAST * each > 1 for each in times):
            continue
        told = likely if times else possible
        yield told(
            NOBODY,
            f"The {heavy.name} axis {now.words}, but the {light.name} axis does not",
            [_evidence(recording, mesh, axis, reaches[axis]) for axis in (heavy, light)],
            in_code(
                f"Create the mesh as {mesh_typed(better)}, in the job and in --mesh",
                f"init_device_mesh(device, {tuple(axis.size for axis in better)},"
                f" mesh_dim_names={tuple(axis.name for axis in better)})",
                references=(DOCS + "distributed.html#torch.distributed.device_mesh.init_device_mesh",),
            ),
            detail=f"It carries {KINDS[_depth(heavy)].words}, the {light.name} axis {KINDS[_depth(light)].words}.",
            severity=of_slowdown(max(times, default=0.0)),
        )
        return  # the order of the axes is a single cause


def _evidence(recording: Recording, mesh: Sequence[Axis], axis: Axis, reach: Reach) -> Evidence:
    groups = "; ".join(rank_list(group) for group in groups_of(mesh, axis)[:LINES_OF_EVIDENCE])
    busbw = ", ".join(f"{name} {rate:.3g} GB/s" for name, rate in _busbw(recording, axis).items())
    return Evidence(text=f"axis {axis.name} {reach.words}: {groups}{f'; busbw: {busbw}' if busbw else ''}")


#: Variables with a process's rank, the number of ranks and its local rank; and how to number ranks node by node.
_OF_LAUNCHER = {
    "slurm": (("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"), "srun --distribution=block ..."),
    "mpi": (tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK")), "mpirun --map-by slot ..."),
}


@rule("DD646", "ranks-alternate-between-nodes", Consequence.COST, MeshFact)
def ranks_alternate_between_nodes(recording: Recording) -> Iterator[Draft]:
    """The launcher gives consecutive ranks to different nodes, so an inner axis crosses all of them.

    Finds: Reported if srun or mpirun started one process per rank and numbered them alternately over the nodes, as the
        variables of the first one on each node show, and the mesh has an axis that would otherwise stay within a node.
    Why: A mesh assumes that neighboring ranks are on the same node. ddp-doctor numbers its own ranks node by node, so
        its measurements of the axes do not apply to this job.
    Remedy: Number ranks node by node: use --distribution=block with srun, --map-by slot with mpirun, or torchrun.
    See: https://slurm.schedmd.com/srun.html (--distribution)
        https://docs.open-mpi.org/en/main/man-openmpi/man1/mpirun.1.html (--map-by)
    """
    mesh, world = _mesh(recording), recording.world
    nodes = {node.node: node.fact for node in recording.facts(EnvVars)}
    own = {_OF_LAUNCHER.get(fact.launcher or "") for fact in nodes.values()}
    found = own.pop() if len(own) == 1 else None
    if world is None or found is None or not 1 < len(nodes) == world.nnodes < world.world_size:
        return
    names, command = found
    program, size = command.partition(" ")[0], f"{world.world_size}"
    told = {tuple(map(fact.variables.get, names)): node for node, fact in nodes.items()}
    if told.keys() != {(f"{rank}", size, "0") for rank in range(len(nodes))}:
        return  # not one process per rank, or not alternating
    for axis in mesh:
        groups = groups_of(mesh, axis)
        apart = next((group for group in groups if len({rank % len(nodes) for rank in group}) > 1), ())
        if apart and _reach(recording, world, groups).nodes == 1:
            on = {rank: told[f"{rank % len(nodes)}", size, "0"] for rank in apart}
            yield likely(
                NOBODY,
                f"{program} alternates ranks between nodes, so the {axis.name} axis"
                f" crosses nodes: {rank_list(apart)} are on {len({*on.values()})} nodes",
                [
                    Evidence(text=f"{world.hostname(on[rank])}: rank {rank} of the job, {program} says")
                    for rank in apart[:LINES_OF_EVIDENCE]
                ],
                remedy(
                    "Number the ranks node by node", command, scope="job", untried="ddp-doctor starts its own ranks"
                ),
                detail="Numbered node by node, these ranks are on one node.",
            )
            return


@rule("DD647", "axis-of-mesh-not-tested", Consequence.KNOWN, MeshFact)
def axis_of_mesh_not_tested(recording: Recording) -> Iterator[Draft]:
    """The backend does not offer some collectives of an axis, or they did not fit in memory.

    Finds: Among the collectives that jobs call on an axis of this name, reports collectives that the backend refuses,
        and collectives whose values were tested but not timed because of too little memory.
    Why: A job that calls the refused collectives would fail. The others may be slow.
    Remedy: Use another backend or release if the job needs them. Otherwise, no action is needed.
    See: docs/how-to/check-a-mesh.md
    """
    found = [group for rank in recording.facts(MeshFact) for group in rank.fact.groups]
    untested = {
        f"{TABLE[name].words} of axis {group.axis}": why for group in found for name, why in group.untested.items()
    }
    if untested:
        lines = [Evidence(text=f"{what}: {why}") for what, why in untested.items()]
        yield proved(NOBODY, f"Not tested, or not timed: {name_list([*untested])}", lines)
