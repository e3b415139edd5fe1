"""One node's part of a run over several, where it ends before it has begun; no ranks."""

import os

from ddp_doctor.app import judge
from ddp_doctor.engine.many_nodes import ManyNodes
from ddp_doctor.engine.plan import Plan
from ddp_doctor.launch.place import Place
from ddp_doctor.launch.session import Session
from ddp_doctor.model.recording import Recording


def _many(session: Session) -> ManyNodes:
    return ManyNodes(
        session=session,
        place=Place(2, 0, None, ("127.0.0.1", 1), (), "plain", is_started_by_us=False),
        plan=Plan(()),
        recording=Recording(run_id="test"),
        judge=lambda recording: judge(recording).report,
        join_timeout_s=5.0,
        announce=lambda _command: None,
        known={},
    )


def test_a_run_that_is_interrupted_before_the_roll_call_closes_without_a_word():
    with Session(dict(os.environ), ("127.0.0.1", 0), lambda _text: None) as session:
        many = _many(session)
        many.interrupted()
        many.close()

    assert many.recording.interrupted


def test_a_store_that_is_lost_leaves_the_run_unsure_whatever_was_read_before():
    with Session(dict(os.environ), ("127.0.0.1", 0), lambda _text: None) as session:
        many = _many(session)
        many._broken_off("the control store broke off")

    assert judge(many.so_far()).report.verdict.value == "unsure"
