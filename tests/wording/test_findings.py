from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Evidence
from ddp_doctor.remedies.kinds import by_administrator
from ddp_doctor.wording.findings import NOBODY, Who, likely, possible, proved

RED = Evidence(text="it is red")
ALPHA = Culprit(kind="node", node="alpha")


def test_finding_names_its_subjects_in_the_title():
    draft = proved(Who((ALPHA,), "alpha"), "Red on {who}", RED, severity=Severity.INFO)

    assert (draft.title, draft.culprits, draft.severity) == ("Red on alpha", (ALPHA,), Severity.INFO)


def test_the_name_of_the_function_is_the_confidence():
    made = [make(NOBODY, "Red", RED).confidence for make in (proved, likely, possible)]

    assert made == [Confidence.PROVED, Confidence.LIKELY, Confidence.POSSIBLE]


def test_one_or_several_observations_and_any_culprits_are_accepted():
    several = likely(iter([ALPHA]), "Red", iter([RED, RED]))

    assert (several.culprits, several.evidence) == ((ALPHA,), (RED, RED))
    assert likely(NOBODY, "Red", RED).evidence == (RED,)


def test_remedies_keep_the_order_of_their_trials():
    first, then = by_administrator("Paint it"), by_administrator("Leave it")

    assert proved(NOBODY, "Red", RED, first, then).remedies == (first, then)
