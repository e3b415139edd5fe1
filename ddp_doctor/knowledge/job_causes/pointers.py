"""Signs that are no cause themselves: who ended and how, victims, time-outs, advice."""

from ddp_doctor.knowledge.job_causes.kinds import Sign

SIGNS = (
    Sign(
        "watchdog-timeout",
        ("Watchdog caught collective operation timeout",),
        r"WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?",
        tier="watchdog",
        role="pointer",
    ),
    Sign(
        "connection-closed",
        ("Connection closed by peer", "Connection reset by peer"),
        role="victim",
    ),
)
