"""The rules over trials: a rank that died, stopped, never came, raised, or called something else.

They apply to every rank check, so they are here and not with one check. Each asks the judge
(engine/hang/judge.py), which is pure, so a replayed recording gives the same answer or a better one.
"""

from ddp_doctor.engine.hang.rules import deaths, devices, failed_starts, hangs, links, slowness
from ddp_doctor.model.rule import rules_in

TRIAL_RULES = rules_in(deaths, devices, failed_starts, hangs, links, slowness)
