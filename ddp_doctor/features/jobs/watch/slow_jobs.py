"""When the pace of a job has fallen for good, by windows of the time in which it got on."""

#: A window ends with the second look at which the count had grown, so that a pause, however long, is in one window.
GROWTHS_OF_WINDOW = 2
#: Before a fall and in it: fewer have no median worth the name (judgment).
LEAST_WINDOWS = 4
#: What is kept of a job: three hours and more, at a window in 15 s.
MOST_WINDOWS = 720
#: Less than this of the pace before is a fall; less than DEEP more likely another part of the job's work (judgment:
#: an evaluation that reduces a number now and then; a lost link of eight leaves more).
FALLEN_SHARE = 0.75
DEEP_SHARE = 0.1
#: The fall is beyond noise at three standard deviations of one window, of which the median of the deviations (MAD) is
#: 1 / 1.4826 where they are normal (Rousseeuw and Croux 1993, Alternatives to the median absolute deviation).
NOISE_MADS = 3 * 1.4826
#: So many windows are on their side of the middle; the others are pauses and checkpoints (judgment).
ON_THEIR_SIDE = 0.8
#: A fall lasts if it goes on for half the time before it, within these bounds, and for twice the longest that ended:
#: an evaluation takes a small part of the time, and comes again (judgment).
LASTS_SHARE = 0.5
LASTS_LEAST_S, LASTS_MOST_S, DEEP_LASTS_MOST_S = 60.0, 600.0, 1800.0
TIMES_OF_ENDED = 2.0
#: A rank is named that came last in this share of at least so many looks in which others waited, as in `attach`; at
#: most half as often before; and for which they wait for at least half of what a step takes longer (judgment).
LAST_SHARE, LEAST_LOOKS = 0.75, 5
LAST_BEFORE_SHARE = 0.5
EXPLAINED_SHARE = 0.5
