"""A run of one node alone."""

import time
from dataclasses import dataclass, replace

from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.engine.node_facts import read_node
from ddp_doctor.engine.node_run.node import NodeRun
from ddp_doctor.engine.prove import prove
from ddp_doctor.model.choices import Where
from ddp_doctor.model.recording import Recording
from ddp_doctor.ranks.run import Run


@dataclass
class OneNode(NodeRun):
    """This node's ranks, one more look at the node, and the remedies that can be tried here."""

    def run(self) -> None:
        """Run the checks on ranks and those that come after them, then try remedies."""
        world, budget_s = self.recording.world, self.request.options.budget_s
        if not self.rank_checks() or world is None:
            return
        run = self.session.run_of(self.recording, time.monotonic() + budget_s)
        self._run_ranks(run)
        self.partial.readings.extend(read_node(self.afterwards(), world, self.request))
        self._prove(replace(run, until=self.started + budget_s))

    def _run_ranks(self, run: Run) -> None:
        launcher, ranks = self.plan.at(Where.LAUNCHER), self.plan.at(Where.RANK)

        def run_forked() -> None:
            if ranks and self.session.torch_is_imported(ranks):
                self.session.start_control()
                self.session.agent_alone(run).run_checks(ranks)

        if launcher:  # in the time that the forkserver needs to import torch
            self.session.agent_alone(run).run_under_torchrun(launcher, meanwhile=run_forked)
        else:
            run_forked()

    def _prove(self, run: Run) -> None:
        agent = self.session.agent_alone(run) if self.session.can_fork else None
        recording = self.so_far()
        prove(recording, diagnose(recording).findings, run, agent, self.partial.experiments)

    def finish(self) -> Recording:
        """The whole recording; ranks that start slowly are asked as late as possible."""
        self.of_ranks()
        return super().finish()
