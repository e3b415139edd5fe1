"""Become torchrun in a process that dies with the agent: ``torchrun.main AGENT_PID ARGS…``."""

import os
import runpy
import sys

from ddp_doctor.ranks.process import die_with_parent

#: The variable with torchrun's pid, for its ranks: they exit with torchrun.
TORCHRUN_VARIABLE = "DDP_DOCTOR_TORCHRUN_PID"


def main() -> None:
    """Run torch.distributed.run, which is what the torchrun script runs, with the other arguments."""
    die_with_parent(int(sys.argv[1]))
    os.environ[TORCHRUN_VARIABLE] = str(os.getpid())
    sys.argv = ["torchrun", *sys.argv[2:]]
    runpy.run_module("torch.distributed.run", run_name="__main__")


if __name__ == "__main__":
    main()
