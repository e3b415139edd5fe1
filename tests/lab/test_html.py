"""Pages in a real browser: nothing is loaded or run, and axe finds no fault that keeps a person from reading them."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.app.fleet import fleet_outcome, read_fleet
from ddp_doctor.app.job_reading import logs
from ddp_doctor.app.recordings import replay
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.html import page
from tests.app.test_fleet import made
from tests.job_logs.test_facts import ROWS
from tests.recordings import load
from tests.render.test_html import EVIL, hang_of, named_page

pytestmark = pytest.mark.lab

#: Runs axe when the page is there, and leaves what it found in the page.
RUN_AXE = """<script>{}</script><script>axe.run().then(found => {{
  const left = document.createElement("pre");
  left.id = "axe";
  left.textContent = JSON.stringify(found.violations);
  document.body.append(left);
}})</script></body>"""
LIGHT, DARK = "1", "0"  # of Blink's setting preferredColorScheme


def opened(file: Path, text: str, *, width: int, scheme: str) -> tuple[str, list[str]]:
    """What a browser makes of a page, and the lines that it writes on the console."""
    if not (chromium := shutil.which("chromium")):
        pytest.skip("needs chromium")
    file.write_text(text, encoding="utf-8")
    command = [
        *(
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-quic",
            "--disable-background-networking",
        ),
        *(f"--user-data-dir={file.parent}/profile", f"--window-size={width},900", "--enable-logging=stderr"),
        *(f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=20000", "--dump-dom"),
    ]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=200, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def faults(tmp_path: Path, text: str, *, width: int, scheme: str) -> list[dict[str, Any]]:
    """What axe finds in a page, for which the page's own policy has to go."""
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    without_policy = re.sub("<meta http-equiv[^>]*>", "", text)
    seen, _ = opened(
        tmp_path / "page.html", without_policy.replace("</body>", RUN_AXE.format(axe)), width=width, scheme=scheme
    )
    (found,) = re.findall('<pre id="axe">(.*?)</pre>', seen, re.DOTALL)
    return [{"id": one["id"], "in": [node["html"] for node in one["nodes"]][:3]} for one in json.loads(unescape(found))]


#: Shows a page in a frame as wide as a telephone, and leaves in the page what of its words is beyond an edge of that.
FRAME = """<body><iframe srcdoc="{}" style="border:0;width:390px;height:2000px"></iframe><script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument, beyond = [], left = document.createElement("pre");
  for (const cell of page.querySelectorAll("td, th, p, li, pre, dt, dd, h1, h2, h3, summary")) {{
    const words = page.createRange();
    words.selectNodeContents(cell);
    const boxes = [...words.getClientRects()].filter(box => box.width > 0);
    const hidden = !boxes.length && getComputedStyle(cell.closest("thead") || cell).display != "none"
      || boxes.some(box => box.right > 391 || box.left < -1);
    if (cell.textContent.trim() && !cell.ariaHidden && !cell.closest("thead") && hidden) beyond.push(cell.textContent);
  }}
  left.id = "beyond";
  left.textContent = JSON.stringify([page.querySelectorAll("td").length, beyond]);
  document.body.append(left);
}}</script></body>"""


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
def test_on_a_telephone_no_number_is_hidden_or_beyond_the_edge(tmp_path: Path, situation: str):
    text = _page(situation, tmp_path)
    without_policy = re.sub("<meta http-equiv[^>]*>", "", text)
    seen, _ = opened(tmp_path / "page.html", FRAME.format(escape(without_policy)), width=800, scheme=LIGHT)
    (found,) = re.findall('<pre id="beyond">(.*?)</pre>', seen, re.DOTALL)
    cells, beyond = json.loads(unescape(found))
    assert cells > 0
    assert beyond == []


#: Shows a page in a frame of a given width, and leaves in the page what of it is cut off or has to be scrolled to.
CUT = """<body><iframe srcdoc="{}" style="border:0;width:{}px;height:2000px"></iframe><script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument, cut = [], left = document.createElement("pre");
  const edge = page.documentElement.clientWidth;
  const note = (what, of) => cut.push(what + ": " + of.textContent.slice(0, 80));
  const shows = label => label.textContent && parseFloat(page.defaultView.getComputedStyle(label).fontSize) > 0;
  for (const box of page.querySelectorAll("body, main, .wide, pre, th, caption"))
    if (box.scrollWidth > box.clientWidth + 2) note("scrolls", box);
  for (const label of page.querySelectorAll(".lane i"))
    if (label.scrollWidth > label.clientWidth + 2 && shows(label)) note("cut label", label);
  for (const item of page.querySelectorAll("table, caption, svg, p, h1, h2, h3, li, dd, td, th")) {{
    const box = item.getBoundingClientRect();
    if (box.width && (box.right > edge + 1 || box.left < -1)) note("beyond the edge", item);
  }}
  for (const text of page.querySelectorAll("svg text")) {{
    const box = text.getBoundingClientRect(), picture = text.ownerSVGElement.getBoundingClientRect();
    if (box.right > picture.right + 1 || box.left < picture.left - 1) note("beyond its picture", text);
  }}
  left.id = "cut";
  left.textContent = JSON.stringify([page.querySelectorAll("table, svg").length, cut]);
  document.body.append(left);
}}</script></body>"""


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
def test_no_table_caption_or_picture_is_cut_off(tmp_path: Path, situation: str, width: int):
    text = re.sub("<meta http-equiv[^>]*>", "", _page(situation, tmp_path))
    seen, _ = opened(tmp_path / "page.html", CUT.format(escape(text), width), width=1400, scheme=LIGHT)
    (found,) = re.findall('<pre id="cut">(.*?)</pre>', seen, re.DOTALL)
    shown, cut = json.loads(unescape(found))
    assert shown > 0
    assert cut == []


def _page(situation: str, folder: Path) -> str:
    """Return the page of a recording, a fleet with a slow and an unhealthy node, a job, or the output of nccl-tests."""
    if situation == "nccl-tests":
        (folder / "job.out").write_text(ROWS)
        outcome = logs([str(folder / "job.out")])
    elif situation == "logs":
        outcome = logs(["tests/job_logs/example/slurm-4711.out"])
    elif situation == "attach":
        outcome = replay(Path("tests/attach/hung-loader.json"))
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


def test_a_host_that_is_called_script_is_text_and_nothing_is_loaded(tmp_path: Path):
    seen, console = opened(tmp_path / "page.html", named_page(EVIL), width=1280, scheme=LIGHT)
    assert console == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in seen
    assert not re.search("<(script|img|link|iframe)", seen)


@pytest.mark.parametrize(
    ("shown", "width", "scheme"),
    [
        ("hang", 390, DARK),
        ("connectivity/node-at-100-mbit", 1280, DARK),
        ("env_vars/of-a-job-script", 390, LIGHT),
        ("trace/slow-compute", 1280, LIGHT),
        ("trace/slow-compute", 390, DARK),
        ("512 ranks", 1280, LIGHT),
    ],
)
def test_axe_finds_no_fault(tmp_path: Path, shown: str, width: int, scheme: str):
    recordings: dict[str, Recording] = {"hang": hang_of(1, guilty=5), "512 ranks": hang_of(64, guilty=77)}
    recording = recordings.get(shown) or load(shown)
    text = page.render(app.judge(recording).report, recording)
    assert faults(tmp_path, text, width=width, scheme=scheme) == []
