"""Pages in a real browser: nothing is loaded or run, and axe finds no accessibility fault."""

import json
import re
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from ddp_doctor import app
from ddp_doctor.app.recordings import replay
from ddp_doctor.features.fleet.use_case import fleet_outcome, read_fleet
from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.html import page
from tests.features.fleet.test_fleet import made
from tests.features.jobs.logs.test_facts import ROWS
from tests.lab.browser import Tab, tab
from tests.recordings import load
from tests.render.test_html import EVIL, hang_of, named_page

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    if not (chromium := shutil.which("chromium")):
        pytest.skip("needs chromium")
    with tab(chromium, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def shown(browser: Tab, text: str, file: Path, *, width: int, scheme: str = "light") -> Tab:
    """Return the browser with this page open."""
    file.write_text(text, encoding="utf-8")
    browser.open(file.as_uri(), width, scheme)
    return browser


#: The number of cells of a page, and what of its text is beyond an edge of a telephone.
BEYOND = """(() => {
  const beyond = [];
  for (const cell of document.querySelectorAll("td, th, p, li, pre, dt, dd, h1, h2, h3, summary")) {
    const words = document.createRange();
    words.selectNodeContents(cell);
    const boxes = [...words.getClientRects()].filter(box => box.width > 0);
    const hidden = !boxes.length && getComputedStyle(cell.closest("thead") || cell).display != "none"
      || boxes.some(box => box.right > 391 || box.left < -1);
    if (cell.textContent.trim() && !cell.ariaHidden && !cell.closest("thead") && hidden) beyond.push(cell.textContent);
  }
  return [document.querySelectorAll("td").length, beyond];
})()"""


@pytest.mark.parametrize(
    "situation",
    [
        "allreduce/not-repeatable",
        "collectives/all-right",
        "gpu_speed/four-a100-in-slots-of-eight-lanes",
        "baseline/one-link-of-three-nodes-slower",
        "env_vars/of-a-job-script",
        "connectivity/node-at-100-mbit",
        "trace/slow-compute",
        "1,024 ranks",
        "fleet",
        "nccl-tests",
    ],
)
def test_every_number_is_visible_on_a_phone(browser: Tab, tmp_path: Path, situation: str):
    cells, beyond = shown(browser, _page(situation, tmp_path), tmp_path / "page.html", width=390).evaluate(BEYOND)
    assert cells > 0
    assert beyond == []


#: The number of tables and pictures of a page, and what of it is cut off or requires scrolling.
CUT = """(() => {
  const cut = [], edge = document.documentElement.clientWidth;
  const note = (what, of) => cut.push(what + ": " + of.textContent.slice(0, 80));
  const shows = label => label.textContent && parseFloat(getComputedStyle(label).fontSize) > 0;
  for (const box of document.querySelectorAll("body, main, .wide, pre, th, caption"))
    if (box.scrollWidth > box.clientWidth + 2) note("scrolls", box);
  for (const label of document.querySelectorAll(".lane i"))
    if (label.scrollWidth > label.clientWidth + 2 && shows(label)) note("cut label", label);
  for (const item of document.querySelectorAll("table, caption, svg, p, h1, h2, h3, li, dd, td, th")) {
    const box = item.getBoundingClientRect();
    if (box.width && (box.right > edge + 1 || box.left < -1)) note("beyond the edge", item);
  }
  for (const text of document.querySelectorAll("svg text")) {
    const box = text.getBoundingClientRect(), picture = text.ownerSVGElement.getBoundingClientRect();
    if (box.right > picture.right + 1 || box.left < picture.left - 1) note("beyond its picture", text);
  }
  return [document.querySelectorAll("table, svg").length, cut];
})()"""


@pytest.mark.parametrize("width", [1280, 500])
@pytest.mark.parametrize(
    "situation",
    [
        "isolation/healthy",
        "collectives/all-right",
        "p2p/one-slow-pair",
        "p2p/four-hosts-on-a-busy-machine",
        "hang/nccl-nodes-with-another-conf-file",
        "env_vars/of-a-job-script",
        "fit/measured",
        "trace/slow-compute",
        "baseline/traces-of-a-job-that-searches",
        "topology/nvswitch-by-nvml",
        "topology/classic-two-socket-remedy-proved",
        "1,024 ranks",
        "fleet",
        "nccl-tests",
        "attach",
        "logs",
    ],
)
def test_no_table_caption_or_picture_is_cut_off(browser: Tab, tmp_path: Path, situation: str, width: int):
    whole, cut = shown(browser, _page(situation, tmp_path), tmp_path / "page.html", width=width).evaluate(CUT)
    assert whole > 0
    assert cut == []


def _page(situation: str, folder: Path) -> str:
    """Return the page of a recording, a fleet with a slow and an unhealthy node, a job, or the output of nccl-tests."""
    if situation == "nccl-tests":
        (folder / "job.out").write_text(ROWS)
        outcome = logs([str(folder / "job.out")])
    elif situation == "logs":
        outcome = logs(["tests/features/jobs/logs/example/slurm-4711.out"])
    elif situation == "attach":
        outcome = replay(Path("tests/features/jobs/attach/hung-loader.json"))
    elif situation == "fleet":
        for each in (
            *(made(f"n{number}", 1) for number in range(6)),
            made("slow", 1, speed=0.5),
            made("bad", 1, "unhealthy"),
        ):
            (folder / f"{each['run_id']}.json").write_text(json.dumps(each))
        outcome = fleet_outcome(read_fleet([str(folder)], lambda _text: None), 0.0)
    else:
        recording = hang_of(128, guilty=77) if situation == "1,024 ranks" else load(situation)
        outcome = app.judge(recording)
    return page.render(outcome.report, outcome.recording)


def test_script_in_a_host_name_is_shown_as_text_and_loads_no_files(browser: Tab, tmp_path: Path):
    browser.console.clear()
    browser.requested.clear()
    seen = shown(browser, named_page(EVIL), tmp_path / "page.html", width=1280).evaluate(
        "document.documentElement.outerHTML"
    )
    assert browser.console == []
    assert browser.requested == [(tmp_path / "page.html").as_uri()]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in seen
    assert not re.search("<(script|img|link|iframe)", seen)


#: Returns what axe, which the page does not contain, finds in it.
RUN_AXE = "{}; axe.run().then(found => found.violations.map(one => [one.id, one.nodes.map(node => node.html)]))"


@pytest.mark.parametrize(
    ("situation", "width", "scheme"),
    [
        ("hang", 390, "dark"),
        ("connectivity/node-at-100-mbit", 1280, "dark"),
        ("env_vars/of-a-job-script", 390, "light"),
        ("trace/slow-compute", 1280, "light"),
        ("trace/slow-compute", 390, "dark"),
        ("512 ranks", 1280, "light"),
    ],
)
def test_axe_finds_no_fault(browser: Tab, tmp_path: Path, situation: str, width: int, scheme: str):
    recordings: dict[str, Recording] = {"hang": hang_of(1, guilty=5), "512 ranks": hang_of(64, guilty=77)}
    recording = recordings.get(situation) or load(situation)
    text = page.render(app.judge(recording).report, recording)
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    opened = shown(browser, text, tmp_path / "page.html", width=width, scheme=scheme)
    assert opened.evaluate(RUN_AXE.format(axe)) == []
