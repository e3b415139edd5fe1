"""Limits for reporting faulty nodes from tests of groups of nodes."""

#: A node, pair or leaf is slow if it is at least this share below the median, and also this many standard deviations,
#: estimated as 1.4826 x the median absolute deviation of the logarithms of the rates (knowledge/baselines.py, SIGMA).
#: Three deviations are enough, because a node is reported only if several partners agree. A quarter is used because
#: paths of healthy clusters differ by up to 15%, and the tests of a round share a network (judgment).
SLOW_SHARE = 0.25
SLOW_DEVIATIONS = 3.0
#: The standard deviation of the logarithms of healthy pairs' rates (judgment), and the degrees of freedom that it
#: counts as next to the measured ones, so that a few rates that happen to agree prove nothing. A moderated t: Smyth,
#: Statistical Applications in Genetics and Molecular Biology 3 (2004).
USUAL_SPREAD = 0.2
USUAL_FREEDOM = 4
#: A faulty node must fail with this many partners, each of which passes without it. With fewer than FEW_NODES nodes,
#: two partners are enough, because there are not more of them.
PARTNERS = 3
FEW_NODES = 8
#: Maximum probability that any node of a run is reported although tests fail only by chance, at the failure rate of
#: tests without a suspect: one run in ten thousand (judgment).
CHANCE = 1e-4
#: Likelihood ratios that the reported fault must reach against the best alternative: at least 50 for a pair against one
#: of its ends that fails intermittently (a ratio above 20 is called strong evidence: Kass and Raftery, Bayes Factors,
#: Journal of the American Statistical Association 90, 1995). A node that fails intermittently is assumed to fail
#: equally often with all partners, unless that is 100 times less likely.
PAIR_RATIO = 1 / 50
ONE_RATE_RATIO = 1 / 100
#: A pair must fail together this many times. A node that fails one time in five may also fail with only one partner by
#: chance, but in less than one run in a thousand (0.2 to the power of 5, for each partner).
PAIR_FAILURES = 5
#: … and if that is the only sign, be slower than this share of the usual rate: no partner confirms it, and hosts of one
#: machine differ more than machines do (with eight on two cores, a healthy pair reached 31% at best in ten tests).
SLOW_PAIR = 1 / 4
#: Maximum number of partners for one node; more partners would not settle what these leave open.
MOST_PARTNERS = 8
