"""The rules over trials: a rank that died, stopped, never came, raised, or called something else.

They apply to every rank check alike, so they live here and not with one check. Each asks the judge
(engine/hang/judge.py), which is pure, so a replayed recording gives the same answer or a better one.
"""

from ddp_doctor.engine.hang.rules import deaths, devices, hangs, links, slowness

TRIAL_RULES = (
    hangs.never_entered,
    hangs.not_running,
    deaths.died,
    devices.another_gpu,
    deaths.raised,
    links.mismatch,
    links.pair,
    hangs.nobody_left,
    deaths.everywhere,
    hangs.never_began,
    slowness.late,
    slowness.slow,
)
