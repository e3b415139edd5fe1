"""Numbers of `ddp-doctor trace`. Those of late ranks: gloo, torch 2.13 and 2.15, two busy cores, and NCCL on one H100."""

#: A rank is late if the others lose so much of the step by it. Healthy ranks have lost 0 to 10 %, each now and then.
LATE_SHARE = 0.10
#: So much of what the others lose has to be found in what the late rank did longer than they, or its cause is not told:
#: planted causes explain 0.6 to 1.1 of it.
EXPLAINED_SHARE = 0.5
#: So many times more work (operators, kernels, samples) is more work; healthy ranks have had equal numbers.
MORE_WORK = 1.1
#: A rank with the same work that merely is slower, or of which nothing is told: noise looks the same, so it takes more.
#: Healthy ranks on busy cores have come to 16 % with twice the next, and to 20 % with 1.5 times.
SLOWER_SHARE, SLOWER_TIMES_THE_NEXT, SLOWER_TIMES = 0.2, 3.0, 1.25
#: Steps that are needed to tell a slower rank from one that was disturbed once.
SLOWER_STEPS = 3
#: A gap of less is what a scheduler makes: 15 ms between healthy ranks on two busy cores.
PAUSE_US = 20_000.0
#: Tensors detached one after another outside of forward and backward: state_dict does it with each, logs with a few.
STATE_DICT_TENSORS = 4
#: Ends of one collective, over the length of a step: healthy ranks leave within 0.16 of it of each other, also where
#: their clocks differ; of two jobs that do the same work at another speed it was 0.2 to 0.98.
ENDS_APART = 0.25
#: An error is what makes a step this many times as long.
ERROR_TIMES = 3.0

# --- Two jobs beside each other --------------------------------------------------------------------------

#: A part of the step has changed by more than this of the step, and than so many times what steps differ in themselves.
CHANGED_SHARE, CHANGED_MADS = 0.03, 3.0
#: A step that is longer by so much is a warning.
LONGER_SHARE = 0.10
#: Of fewer steps their noise is not known.
FEWEST_STEPS = 3
