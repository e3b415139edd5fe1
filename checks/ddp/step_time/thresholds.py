"""Numbers above which a rule about step times speaks, each with its source."""

#: A larger batch on one rank is measured up to so many times the usual one; the time grows with it.
LARGEST_ALONE = 4

#: Communication that is as long as computing cannot hide behind it, however well it overlaps.
RATIO_BOUND = 1.0
#: The same where other work disturbs the ranks: gloo's communication needs processors too. With two ranks on
#: two busy processors, and no limit on their link, it took 1.5 times as long as computing
#: (docs/explanation/step-time.md).
RATIO_BOUND_DISTURBED = 5.0
#: A step of which a third is spent waiting gains half as much again where nothing waits (judgement).
EXPOSED_SHARE = 0.33
#: A model of the user's that computes for less than this in a step has the batch of a test, not of a job: waiting is
#: information then. Two gloo ranks on one machine need 0.3 ms to average anything at all (judgement).
SMALLEST_STEP_S = 0.001
#: The share of a step that communication may take once gradients are accumulated.
AIM_SHARE = 0.20

#: A rank is slow whose quickest look takes so many times as long as its peers' median at its slowest. In 24 runs of
#: 2 to 4 healthy ranks on two busy processors it was 0.96 times as long at the most (docs/explanation/step-time.md).
SLOW_RANK = 1.25
#: An error is three times slower than the peers (model/choices.py, Severity).
MUCH_SLOWER = 3.0
#: A rank that had a processor for less of the time was held up by something else that ran there.
ON_CPU_SHARE = 0.9

#: A gain below this is not worth a setting, whatever the noise is (judgement).
BUCKET_GAIN = 0.05
#: A prediction is believed where it is so near to what was measured, for the default and for the advised size.
PREDICTED_WITHIN = 1.35
