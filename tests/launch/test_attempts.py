"""Trials of remedies on real ranks: fresh processes with other settings that leave nothing behind."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Thread

import pytest

from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.node import Session
from ddp_doctor.engine.prove.experiments import Spoiled, attempt_of
from ddp_doctor.model.choices import Level
from ddp_doctor.model.finding import Reproducer, Setting
from ddp_doctor.model.recording import Node, Options, World
from ddp_doctor.model.trial import Attempt
from ddp_doctor.ranks.node_ranks import Run
from ddp_doctor.starters.request import RunRequest
from tests.launch.conftest import _descendants
from tests.waiting import wait_until

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("own_forkserver")]

NO_SUCH = "GLOO_SOCKET_IFNAME"
WITHOUT = (Setting(name=NO_SUCH, action="unset"),)
LOOPBACK = (Setting(name=NO_SUCH, value="lo"),)
MEET = Reproducer(kind="meet")


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    env = {**os.environ, NO_SUCH: "eth9"}
    world = World(nproc_per_node=4, world_size=4, nodes=(Node(hostname="node0"),))
    with Session(RunRequest(Options(), env)) as session:
        session.warm_up()
        assert session.torch_is_imported(())
        session.start_control()
        assert session.can_fork
        run = Run(Options(level=Level.QUICK), env, print, world, until=time.monotonic() + 60.0)
        yield session.agent(run)
        assert session.partial.trials == []  # a trial of a remedy never blames a rank
        assert session.partial.readings[1:] == []


def attempt(agent: Agent, reproducer: Reproducer, settings: Sequence[Setting] = (), limit_s: float = 10.0) -> Attempt:
    return attempt_of("treatment" if settings else "control", agent.attempt(reproducer, settings, limit_s))


def test_ranks_meet_without_the_variable_that_names_no_interface_and_not_with_it(agent):
    treatment, control = attempt(agent, MEET, WITHOUT), attempt(agent, MEET)

    assert treatment.outcome == "passed"
    assert (control.outcome, control.reason) == ("failed", "RuntimeError: Unable to find address for: eth9")


def test_an_all_reduce_is_measured_on_all_ranks_and_an_exchange_between_two(agent):
    reduced = attempt(agent, Reproducer(kind="all_reduce", size_bytes=1 << 20), LOOPBACK)
    swapped = attempt(agent, Reproducer(kind="exchange", ranks=(1, 3), size_bytes=1 << 20), LOOPBACK)

    for one in (reduced, swapped):
        assert one.outcome == "passed"
        assert one.bytes_per_s is not None


def test_a_setting_of_one_node_does_not_reach_the_ranks_of_another(agent):
    elsewhere = (Setting(name=NO_SUCH, value="lo", node="node1", node_rank=1),)

    assert attempt(agent, MEET, elsewhere).outcome == "failed"


def test_trial_past_its_limit_has_hung_and_its_ranks_are_removed(agent):
    before = {process.pid for process in _descendants()}

    late = attempt(agent, MEET, WITHOUT, limit_s=0.001)

    assert late.outcome == "hung"
    wait_until(lambda: {process.pid for process in _descendants()} <= before)


def test_rank_killed_in_a_trial_spoils_it_in_any_order_of_reports(agent):
    before = {process.pid for process in _descendants()}

    def four_ranks() -> list[int]:
        new = [process.pid for process in _descendants() if process.pid not in before]
        return new if len(new) == 4 else []

    def kill_one() -> None:
        ranks = wait_until(four_ranks)
        with suppress(ProcessLookupError):
            os.kill(ranks[1], signal.SIGKILL)

    killer = Thread(target=kill_one)
    killer.start()
    with pytest.raises(Spoiled, match="killed from outside"):
        attempt(agent, Reproducer(kind="all_reduce", size_bytes=1 << 28), LOOPBACK)
    killer.join()


def test_trial_does_not_change_the_environment_of_the_agent(agent):
    before = dict(os.environ)

    attempt(agent, MEET, LOOPBACK)

    assert dict(os.environ) == before
    assert agent.node_ranks.run.env[NO_SUCH] == "eth9"


def test_trial_never_sets_variables_that_load_code_or_write_files(agent):
    for name in ("LD_PRELOAD", "NCCL_NET_PLUGIN", "NCCL_DEBUG_FILE", "PATH"):
        with pytest.raises(ValueError, match="tests must not set"):
            attempt(agent, MEET, (Setting(name=name, value="/tmp/x"),))


@pytest.mark.serial
@pytest.mark.timing  # only the time shows that ranks are forked instead of importing torch again
def test_another_trial_of_two_ranks_needs_a_fraction_of_a_second(agent):
    took = [attempt(agent, Reproducer(kind="meet", ranks=(0, 1)), WITHOUT).duration_s for _ in range(5)]

    assert sorted(took)[2] < 2.0  # 0.1 s on an idle machine
