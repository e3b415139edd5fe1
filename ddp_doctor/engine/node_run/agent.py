"""The agent that decides: it plans one trial after another until all rank checks were run.

After a trial hung, the rest of the plan runs in the next trial: without the rank at fault, without the pair that did
not answer, or, if neither is known, without the check. Ranks keep their original numbers in all reports. With several
nodes it is the head's agent, and the others follow its orders (follower_agent.py).
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ddp_doctor.engine.hang import judge
from ddp_doctor.engine.node_run.partial_recording import PartialRecording
from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.base import Json
from ddp_doctor.model.check import P2P, PROCESS_GROUP, Check
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Reproducer, Setting
from ddp_doctor.model.recording import World
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks.node_ranks import NodeRanks, parts_of
from ddp_doctor.ranks.trial import TrialResult
from ddp_doctor.ranks.worker.remedy_probe import TRYING
from ddp_doctor.wording.ranks import cause, ended, short

if TYPE_CHECKING:  # not imported on a single node
    from ddp_doctor.agents.agent_group import AgentGroup
    from ddp_doctor.agents.remote_ranks import StoreRemoteRanks

#: After this many trials the rest of the plan is not run.
MOST_TRIALS = 8


@dataclass
class Agent:
    """The agent that runs the rank checks of a world, on one node or, with a ``group``, on several."""

    node_ranks: NodeRanks
    partial: PartialRecording  # the session's, filled in place
    group: "AgentGroup | None" = None
    attempts: int = 0  # unjudged trials, which are not recorded as trials
    _ranks: tuple[int, ...] = ()
    _skip_pairs: set[tuple[int, int]] = field(default_factory=set)
    _without_parts: tuple[str, ...] = ()
    _hung_in_a_part: set[int] = field(default_factory=set)  # suspects of one part so far

    @property
    def world(self) -> World:
        """The world of all ranks."""
        return self.node_ranks.run.world

    def run_under_torchrun(self, checks: Sequence[Check], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Run one trial whose ranks the real torchrun starts; ``meanwhile`` runs while torchrun shuts down."""
        record = self._record(checks, tuple(range(self.world.world_size)), "torchrun")
        remote = self._order_trial("torchrun", record, checks)
        running = self.node_ranks.running_under_torchrun(record, checks, remote)
        with running as (mine, launch):
            result = self._with_other_nodes(mine)
            self.partial.keep(result)
            if result.cut_short is not None:
                self._fail_checks(checks, result.cut_short)
            else:
                self._note_unread(result.record, checks, result.record.ranks)
            try:
                meanwhile()
            finally:  # torchrun's output may name the cause
                record = result.record
                ends = record.outcome == "finished" or any(rank.exited_at for rank in record.evidence)
                notes = launch.notes(deadlines.CHECK_S if ends else 0.0)
                if result.cut_short is None:
                    position = self.partial.trials.index(record)
                    known = {"notes": notes, "evidence": launch.with_exit_codes(record.evidence)}
                    self.partial.trials[position] = record.model_copy(update=known)

    def run_checks(self, checks: Sequence[Check]) -> None:
        """Run all rank checks, except those with their own environment, in as many trials as needed."""
        self._ranks = tuple(range(self.world.world_size))
        left = [check for check in checks if not check.environment]
        while left:
            left = self._checks_that_fit(left)
            if not left:
                return
            if (lost := self.node_ranks.lost_helper()) is not None:
                self._fail_checks(left, lost)
                return
            record = self._record(left, self._ranks, "forkserver")
            remote = self._order_trial("trial", record, left)
            result = self._with_other_nodes(self.node_ranks.run_trial(record, left, tuple(self._skip_pairs), remote))
            self.partial.keep(result)
            if result.cut_short is not None:
                self._fail_checks(left, result.cut_short)
                return
            left = self._left_after(result.record, left)

    def attempt(self, reproducer: Reproducer, settings: Sequence[Setting], limit_s: float) -> TrialResult:
        """Run one trial in fresh processes with these settings that contains only the reproducer of a fault."""
        return self._run_unjudged(self.trying(reproducer, settings, limit_s), ())

    def trying(self, reproducer: Reproducer, settings: Sequence[Setting], limit_s: float) -> TrialRecord:
        """Return the plan of such a trial. The limit assumes a machine with a core for every few ranks."""
        ranks = reproducer.ranks or tuple(range(self.world.world_size))
        return self._record((), ranks, "forkserver").model_copy(
            update={
                "checks": (PROCESS_GROUP, TRYING),
                "reproducer": reproducer,
                "settings": tuple(settings),
                "limit_s": limit_s * self.node_ranks.crowd(),
            }
        )

    def run_alone(self, check: Check) -> TrialResult:
        """Run a check with its own environment in a separate trial of all ranks."""
        record = self._record((check,), tuple(range(self.world.world_size)), "forkserver")
        return self._run_unjudged(record.model_copy(update={"limit_s": check.deadline_s}), (check,))

    def _run_unjudged(self, record: TrialRecord, checks: Sequence[Check]) -> TrialResult:
        self.attempts += 1
        remote = self._order_trial("trial", record, checks)
        return self._with_other_nodes(self.node_ranks.run_trial(record, checks, (), remote))

    # --- the other nodes ------------------------------------------------------------------------

    def _order_trial(self, what: str, record: TrialRecord, checks: Sequence[Check]) -> "StoreRemoteRanks | None":
        if self.group is None:
            return None
        from ddp_doctor.agents.remote_ranks import StoreRemoteRanks

        order: dict[str, Json] = {
            "do": what,
            "record": record.model_dump(mode="json"),
            "checks": [check.id for check in checks],
            "skip_pairs": sorted(self._skip_pairs),
        }
        self.group.order(order)
        return StoreRemoteRanks(self.group, record.trial)

    def _with_other_nodes(self, mine: TrialResult) -> TrialResult:
        if self.group is None:
            return mine
        from ddp_doctor.agents import messages
        from ddp_doctor.agents.remote_ranks import merged

        trial = mine.record.trial
        read = partial(messages.trial_part, trial=trial)
        parts = self.group.gather(f"result/{trial}", deadlines.HAND_IN_S, read)
        self.group.require_store()
        absent = tuple(rank for rank in self.group.others if rank not in parts)
        return merged([mine, *parts.values()], absent)

    # --- one node or many ---------------------------------------------------------------------

    def _fail_checks(self, checks: Sequence[Check], why: str) -> None:
        """Mark the checks without a reading as failed; the machine is not the cause."""
        read = {reading.check for reading in self.partial.readings if reading.rank is not None}
        self.partial.readings.extend(
            Reading(check=check.id, status=Status.FAILED, reason=why) for check in checks if check.id not in read
        )

    def _checks_that_fit(self, checks: list[Check]) -> list[Check]:
        fitting = []
        # A slow import of torch must not leave a node healthy and untested.
        has_met = any(trial.launcher == "forkserver" for trial in self.partial.trials)
        for check in checks:
            if len(self.partial.trials) >= MOST_TRIALS:
                self.partial.leave_out((check,), f"not run after {MOST_TRIALS} trials")
            elif time.monotonic() > self.node_ranks.run.until and has_met:
                self.partial.leave_out((check,), "the time budget was used up")
            elif len(self._ranks) < self._needed(check):
                have = "is left" if len(self._ranks) < self.world.world_size else "is all this run has"
                self.partial.leave_out((check,), f"needs {self._needed(check)} ranks, {len(self._ranks)} {have}")
            else:
                fitting.append(check)
        return fitting

    def _needed(self, check: Check) -> int:
        """Return how many ranks a check needs. A single rank proves nothing about the others.

        The user's code may depend on its rank, which changes in a smaller world: another rank would be blamed.
        """
        is_of_all = check.needs_mesh or check.needs_job or check.runs_model(self.node_ranks.run.options.model)
        return max(check.min_ranks, self.world.world_size if is_of_all else min(self.world.world_size, 2))

    def _left_after(self, record: TrialRecord, checks: list[Check]) -> list[Check]:
        if record.outcome == "finished":
            return []
        if record.lost_nodes:
            assert self.group is not None
            silent = {*self.group.lost, *self.group.silent()}
            late = [node for node in record.lost_nodes if node not in silent]  # they still sent beats, but no reading
            self._note_unread(record, checks, [rank for node in late for rank in self.world.ranks_of(node)])
            names = ", ".join(self.world.hostname(node) for node in record.lost_nodes)
            return self._leave_out(checks, f"no word of {names}")
        judgment = judge.judge(record)
        ids = [check.id for check in checks]
        position = ids.index(record.judged_check) if record.judged_check in ids else 0
        judged = checks[position : position + 1]
        goes_on = any(check.parts and self._goes_on(record, check, judgment.suspects) for check in judged)
        if judgment.suspects and not goes_on:
            self._ranks = tuple(rank for rank in self._ranks if rank not in judgment.suspects)
            self._note_unread(record, judged, judgment.suspects)
        if judgment.suspects or goes_on:
            return checks[position:]
        if judgment.pairs and not set(judgment.pairs) <= self._skip_pairs:
            # A collective over a pair that does not answer would hang again; the other pairs are still tested.
            self._skip_pairs |= set(judgment.pairs)
            pairs = ", ".join(f"{rank} and {peer}" for rank, peer in sorted(self._skip_pairs))
            others = [check for check in checks[position:] if check.id != P2P]
            self._leave_out(others, f"the link between ranks {pairs} hangs")
            return [check for check in checks[position:] if check.id == P2P]
        self._note_unread(record, judged, record.ranks)
        steps = [step for evidence in record.evidence for step in evidence.steps]
        if record.judged_check == PROCESS_GROUP and not any(
            step.name == "init_process_group" and step.left_at is not None for step in steps
        ):
            return self._leave_out(checks, "the process group could not be set up")
        left = self._without_model(judged, checks[position + 1 :])
        # A link is the cause: the pairwise check finds it, so it must run before checks that may hang again.
        return sorted(left, key=lambda check: check.id != P2P)

    def _goes_on(self, record: TrialRecord, check: Check, suspects: Sequence[int]) -> bool:
        """Return True if parts are left after the part that hung, and no suspect hung in two parts.

        The part that hung is the first one that some rank did not read.
        """
        read = Counter(reading.part for reading in self.partial.readings if reading.check == check.id)
        left = parts_of(check, self.node_ranks.run.options, self._without_parts)
        hung = next((part for part in left if read[part] < len(record.ranks)), left[-1] if left else "")
        self._without_parts += left[: left.index(hung) + 1] if left else ()
        self._note_unread(record, [check], suspects or record.ranks, part=hung)
        again = self._hung_in_a_part & set(suspects)
        self._hung_in_a_part |= set(suspects)
        return left[-1:] != (hung,) and not again

    def _without_model(self, judged: Sequence[Check], checks: Sequence[Check]) -> list[Check]:
        """Leave out the checks of the user's model after one of them hung or raised: it would do so again."""
        model = self.node_ranks.run.options.model
        if not any(check.runs_model(model) for check in judged):
            return list(checks)
        again = [check for check in checks if check.runs_model(model)]
        self._leave_out(again, f"{model} did not pass the {judged[0].id} check")
        return [check for check in checks if check not in again]

    def _leave_out(self, checks: Sequence[Check], reason: str) -> list[Check]:
        read = {reading.check for reading in self.partial.readings}
        self.partial.leave_out((check for check in checks if check.id not in read), reason)
        return []

    def _note_unread(self, record: TrialRecord, checks: Sequence[Check], ranks: Sequence[int], part: str = "") -> None:
        """Record that the check failed or timed out on ranks that will not run it again, or not this part of it."""
        if record.outcome == "finished":
            return
        read = {(reading.check, reading.rank, reading.part if part else "") for reading in self.partial.readings}
        status = Status.FAILED if record.outcome == "broken" else Status.TIMED_OUT
        self.partial.readings.extend(
            Reading(
                check=check.id,
                status=status,
                node=self.world.node_of(rank),
                rank=rank,
                part=part,
                reason=f"{part}: " * bool(part) + _why_unread(record, rank),
            )
            for check in checks
            for rank in ranks
            if (check.id, rank, part) not in read
        )

    def _record(self, checks: Sequence[Check], ranks: tuple[int, ...], launcher: str) -> TrialRecord:
        """Return the plan of a trial. Each begins with the process group, which every check needs."""
        return TrialRecord.model_validate(
            {
                "trial": f"t{len(self.partial.trials) + self.attempts}",
                "launcher": launcher,
                "backend": self.world.backend,
                "ranks": ranks,
                "checks": (PROCESS_GROUP, *(check.id for check in checks if check.id != PROCESS_GROUP)),
                "without_parts": self._without_parts,
            }
        )


def _why_unread(record: TrialRecord, rank: int) -> str:
    mine = next((evidence for evidence in record.evidence if evidence.rank == rank), None)
    if mine is not None and mine.raised is not None:
        return f"{mine.raised.type} at {short(mine.raised.where)}: {cause(mine.raised.message)[:300]}"
    if mine is not None and mine.exit_code is not None and record.launcher == "forkserver":
        return f"its process {ended(mine)}"
    return f"the ranks were stopped before rank {rank} finished"
