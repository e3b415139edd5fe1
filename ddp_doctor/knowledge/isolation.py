"""From where on tests of groups of nodes blame somebody."""

#: A node, pair or leaf is slow from this share below the median on, and from as many standard deviations as 1.4826 x
#: the median absolute deviation of the logarithms of the rates estimates (knowledge/baselines.py, SIGMA). Three of
#: them, for a node is named only where several partners agree; a quarter, for paths of healthy clusters differ by up to
#: 15 % there, and the tests of a round share a network (judgment).
SLOW_SHARE = 0.25
SLOW_DEVIATIONS = 3.0
#: The standard deviation of the logarithms of healthy pairs' rates (judgment), and as of how many degrees of freedom
#: it counts beside what was measured, so that a few rates that happen to agree prove nothing. A moderated t: Smyth,
#: Statistical Applications in Genetics and Molecular Biology 3 (2004).
USUAL_SPREAD = 0.2
USUAL_FREEDOM = 4
#: So many partners, each of whom passes without it, a node must fail with; of less than FEW_NODES two will do, for
#: there are not more of them.
PARTNERS = 3
FEW_NODES = 8
#: How likely at most it may be that any node of a run is blamed because tests fail by chance as often as those do in
#: which nobody is suspected: a run in ten thousand (judgment).
CHANCE = 1e-4
#: How much more likely what was seen must be under the fault that is named than under the best other one: at least 50
#: times for a pair against one of its ends that fails now and then (a likelihood ratio above 20 is called strong
#: evidence: Kass and Raftery, Bayes Factors, Journal of the American Statistical Association 90, 1995). A node that
#: fails now and then may do so with one partner as often as with another, unless that is 100 times less likely.
PAIR_RATIO = 1 / 50
ONE_RATE_RATIO = 1 / 100
#: A pair must fail together so often: a node that fails one time in five does so with one partner alone by chance, too,
#: but in less than one run of a thousand (0.2 to the power of 5, for each partner).
PAIR_FAILURES = 5
#: … and be slower than this share of the usual rate, where that is all: no partner bears it out, and hosts of one
#: machine differ more than machines do (of eight on two cores a healthy pair reached 31 % at best, ten times).
SLOW_PAIR = 1 / 4
#: A node is tested with no more partners than these: what they leave open, others will not settle.
MOST_PARTNERS = 8
