"""The report as a page: read back by a parser of HTML. How it looks, a browser tells in tests/lab/test_html.py."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from ddp_doctor import app
from ddp_doctor.app import recordings, redaction
from ddp_doctor.cli.outputs import Outputs, Results
from ddp_doctor.features.lint.use_case import lint
from ddp_doctor.model.choices import CheckStatus
from ddp_doctor.model.finding import Culprit, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import CheckResult
from ddp_doctor.model.trial import RankEvidence
from ddp_doctor.render.html import page
from tests import simulated
from tests.features.jobs.logs.test_story import FAILED
from tests.recordings import judged, load
from tests.render.reports import error, hostile_reports, remedy, report, world

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> {{ 7*7 }} &amp; \x1b]52;c;eA==\x07"
#: Without an end tag.
VOID = {"meta", "br"}


class Page(HTMLParser):
    """A text as a browser parses it; mismatched end tags are errors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""  # the text that a person reads, without lines
        self.tags: list[tuple[str, dict[str, str]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, f"</{tag}> at {self.getpos()}"
        self.text += "\n" * (tag in {"p", "tr", "li", "h1", "h2", "h3", "pre", "dd", "caption"})

    def handle_data(self, data):
        if not {"style", "title"} & {*self._open}:
            self.text += data

    def attributes(self, tag: str, name: str) -> list[str]:
        return [attributes[name] for found, attributes in self.tags if found == tag and name in attributes]


def of(situation: str) -> Page:
    outcome = judged(situation)
    return Page(page.render(outcome.report, load(situation)))


def test_hanging_rank_is_shown_with_its_activity_and_the_waiting_ranks():
    read = of("hang/nccl2-rank-absent-by-the-recorder").text
    assert re.search(r"✗ Unhealthy\s+Rank 2 .* never entered all_reduce #3", read)
    assert "Cause: rank 2 on node0" in read
    assert re.search(r"rank 2✗ DD610Left all_reduce 2 .*\n.*Was at data.py:33 in fetch", read)
    assert len(re.findall(r"In all_reduce 3 of allreduce .* since 3.30 s, for 10.00 s", read)) == 3
    assert re.search(r"allreduce\s*All-reduce is right.*failed", read)  # what was not tested


def test_bar_of_a_rank_that_raised_ends_at_its_exception():
    read = of("hang/rank-is-killed").text
    assert "Ended at 0.16 s: SIGKILL" in read
    assert re.search(r"rank 0.*Raised RuntimeError at train.py:29 at 0.16 s.*\n.*Was in all_reduce .* for 0.01 s", read)
    assert re.search(r"rank 3.*In all_reduce 1 .* since 0.15 s, for 0.72 s", read)


def test_rank_without_results_has_a_row_with_the_reason():
    assert re.search(r"rank 2node2Contact with its node was lost", of("roll_call/node-killed-whole").text)


def test_text_selected_by_a_click_can_be_pasted_unchanged():
    written = page.render(judged("env_vars/of-a-job-script").report, load("env_vars/of-a-job-script"))
    pasted = re.findall("<pre[^>]*><code>(.*?)</code>", written, re.DOTALL)
    assert "export NCCL_SHM_DISABLE=1" in pasted
    assert not [text for text in pasted if text.startswith("Undo")]


def test_measurements_have_expected_values_and_slow_pairs_are_marked_without_color():
    assert (
        "The dashed line is the expected rate of large messages: 371 GB/s"
        in of("topology/transports-nvlink-at-a-tenth").text
    )
    page = of("p2p/one-slow-pair")
    assert page.text.count("▼▼ 1.1") == 2
    assert ("svg", "img") in [(tag, attributes.get("role")) for tag, attributes in page.tags]


def test_healthy_run_shows_the_expected_rate_and_the_tested_checks():
    read = of("topology/transports-nvlink-at-its-rate").text
    assert "371 GB/s, NCCL's own constants for the slowest pair of GPUs" in read
    assert "No findings." in read
    assert "✓ allreduce" in read


@pytest.mark.parametrize(
    "situation",
    [
        "hang/nccl2-rank-absent-by-the-recorder",
        "connectivity/slow-network-and-remedy-proved",
        "env_vars/of-a-job-script",
    ],
)
def test_page_is_accessible_and_loads_nothing(situation: str):
    read = of(situation)
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = read.attributes("a", "href")
    assert links
    assert {link.removeprefix("#") for link in links} <= {*ids}
    heads = [attributes for tag, attributes in read.tags if tag == "th"]
    assert all(attributes.get("scope") in ("row", "col") for attributes in heads)
    levels = [int(tag[1]) for tag, _ in read.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert not {tag for tag, _ in read.tags} & {"script", "img", "link", "iframe", "object", "form"}
    assert read.attributes("html", "lang") == ["en"]


def named_page(name: str) -> str:
    found = error(remedy(commands=(name,))).model_copy(
        update={
            "title": name,
            "detail": name,
            "evidence": (Evidence(check="gpus", text=name),),
            "culprits": (Culprit(kind="node", node=name),),
        }
    )
    check = CheckResult(id="gpus", title="GPUs", status=CheckStatus.SKIPPED, reason=name)
    shown = report(found, on=world(name)).model_copy(update={"summary": name, "checks": (check,)})
    return page.render(shown, Recording(world=world(name)))


def test_foreign_names_are_text():
    evil, harmless = Page(named_page(EVIL)), Page(named_page("Node1"))
    assert [(tag, [*names]) for tag, names in evil.tags] == [(tag, [*names]) for tag, names in harmless.tags]
    assert evil.text.count("<script>alert(1)</script>") == harmless.text.count("Node1") >= 7
    assert "{{ 7*7 }}" in evil.text
    assert "\x1b" not in evil.text
    for hostile in hostile_reports(20):
        Page(page.render(hostile, Recording()))


def test_text_like_a_credential_is_removed():
    told = report(error().model_copy(update={"detail": "hf_abcdefghijklmnopqrstuvwxyz is refused"}))
    read = Page(page.render(told, Recording())).text
    assert "hf_abc" not in read
    assert "(kept back)" in read


def test_a_redacted_page_has_other_names(tmp_path: Path):
    outcome = app.judge(redaction.redacted(load("roll_call/node-killed-whole")))
    outputs = Outputs({"html": str(tmp_path / "page.html")}, redact=True)
    outputs.require_redactable()
    assert outputs.write(Results(outcome.report, outcome.recording)) == []
    written = (tmp_path / "page.html").read_text()
    assert "host1" in written
    assert not [node for node in judged("roll_call/node-killed-whole").report.nodes if node.hostname in written]


def hang_of(nodes: int, guilty: int) -> Recording:
    """Return a recording of ranks that wait in an all-reduce that the faulty rank never enters."""

    def hung(rank: RankEvidence) -> RankEvidence:
        is_guilty = rank.rank == guilty
        steps = rank.steps[:3] if is_guilty else (*rank.steps[:3], simulated.step(3, left_at=None))
        stands = (
            "data.py:33 in fetch" if is_guilty else "/opt/venv/torch/distributed/distributed_c10d.py:3252 in all_reduce"
        )
        here = {"done": False, "exit_code": None, "state": "S", "steps": steps, "stack": (stands,)}
        return rank.model_copy(update=here)

    whole = simulated.recording(nodes)
    evidence = tuple(map(hung, whole.trials[0].evidence))
    stuck = {"outcome": "stuck", "judged_check": "allreduce", "waited_s": 10.0, "evidence": evidence}
    return whole.model_copy(update={"trials": (whole.trials[0].model_copy(update=stuck),)})


def test_512_ranks_that_did_the_same_are_one_row_and_their_hosts_one_picture():
    recording = hang_of(64, guilty=77)
    written = page.render(app.judge(recording).report, recording)
    read = Page(written).text
    assert len(written) < 100_000
    assert read.index("rank 77✗ DD610") < read.index("ranks 0-76, 78-511 (511 ranks)")
    assert "node9" in read
    assert read.count("and 62 more like it") == 1


def test_failed_and_running_jobs_show_the_activity_of_their_ranks():
    failed = Page(page.render(app.judge(FAILED).report, FAILED)).text
    assert re.search(r"!! rank 5\s*node1", failed)
    running = recordings.replay(Path("tests/features/jobs/attach/hung-loader.json"))
    table = Page(page.render(running.report, running.recording)).text
    assert re.search(r"!! rank \d.*waits for", table)


def test_a_finding_in_a_script_has_its_place(tmp_path: Path):
    script, target = tmp_path / "train.py", tmp_path / "page.html"
    script.write_text("import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(1, 1))\n")
    lint([str(script)], Outputs({"html": str(target)}), quiet=True)
    assert "train.py:2" in Page(target.read_text()).text
