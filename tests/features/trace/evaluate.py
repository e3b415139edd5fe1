"""The findings of the rules in real traces, compared with the truth: ``python -m tests.features.trace.evaluate DIR…``.

A directory has cases of situations.py, or an ``index.json`` with the truth of its cases. Prints each case, then sums:
correct causes, ranks that were wrongly blamed, warnings without an injected fault, and the bounds compared with the
measured gain of removing a fault.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from ddp_doctor.app import UsageError
from ddp_doctor.features.trace.use_case import trace
from ddp_doctor.features.trace.views.advice import advice
from ddp_doctor.features.trace.views.windows import problem, windows
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.recording import Options
from tests.features.trace.situations import CASES, GPU, GPU_PAIRS, Case
from tests.words import pairs

#: The names that an index.json has for what these rules find.
OF_STRAGGLERS = {
    "compute": "slow-compute",
    "data": "slow-data-loading",
    "batch": "larger-batch",
    "checkpoint": "checkpoint-in-step|pauses",
    "host": "host-bound-rank|slow-compute",
    "host pauses": "pauses",
}
OF_STEPS = pairs("""
    input_bound=input-bound tiny_buckets=tiny-buckets no_overlap=no-overlap
    find_unused_needless=find-unused-parameters-needless no_sync_missing=no-sync-missing
    broadcast_buffers=buffers-broadcast optimizer_bound=optimizer-bound small_collectives=small-collectives
    barrier=barrier-in-step
""")
#: Noise of a gain that is measured in one pair without alternating: two healthy jobs differed by this much.
NOISE_ON_GPU = 0.07


@dataclass
class Judged:
    name: str
    case: Case
    found: list[str] = field(default_factory=list)  # of a warning or an error: name@rank, or name
    told: list[str] = field(default_factory=list)  # … of an info
    bounds: dict[str, float] = field(default_factory=dict)  # by the rule's name
    why: str = ""  # nothing can be judged
    gain: float | None = None
    noise: float = 0.0

    @property
    def missed(self) -> list[str]:
        return [truth for truth in self.case.truth if not _matches(truth, [*self.found, *self.told])]

    @property
    def weak(self) -> list[str]:
        """Right, but no more than an info, or by the second name."""
        wanted = [re.sub(r"\|[^@]*", "", truth) for truth in self.case.truth]
        return [truth for truth in wanted if truth not in self.found and not (set(self.missed) & {truth})]

    @property
    def innocents(self) -> list[str]:
        guilty = {truth.partition("@")[2] for truth in (*self.case.truth, *self.case.may)}
        return [said for said in (*self.found, *self.told) if "@" in said and said.partition("@")[2] not in guilty]

    @property
    def surplus(self) -> list[str]:
        """Return the warnings about steps without an injected fault."""
        known = [*self.case.truth, *self.case.may]
        if "*" in known:
            return []
        return [said for said in self.found if not any(_matches(each, [said]) for each in known)]


def _matches(truth: str, found: Iterable[str]) -> bool:
    names, _, rank = truth.partition("@")
    return any(
        said.partition("@")[0] in names.split("|") and (not rank or said.partition("@")[2] == rank) for said in found
    )


def judge(judged: Judged, paths: Iterable[Path]) -> Judged:
    try:
        outcome = trace([str(path) for path in paths], Options(command="trace"))
    except UsageError as why:
        judged.why = str(why)
        return judged
    judged.why = problem(outcome.recording)
    for code, failure in outcome.rule_failures:
        print(f"{judged.name}: {code} failed: {failure}")
    names = {}
    for finding in outcome.report.findings:
        names[finding.code] = finding.name
        ranks = [f"@{culprit.rank}" for culprit in finding.culprits if culprit.rank is not None] or [""]
        said = judged.told if finding.severity is Severity.INFO else judged.found
        said += [finding.name + rank for rank in ranks]
    for window in windows(outcome.recording):
        for each in advice(outcome.recording, window):
            name = names.get(each.code, each.code)
            judged.bounds[name] = max(judged.bounds.get(name, 0.0), each.at_most)
    return judged


def _of_index(folder: Path) -> Iterator[Judged]:
    for row in json.loads((folder / "index.json").read_text()):
        if not row.get("files") or not (folder / row["case"]).is_dir():
            continue
        names = []
        for truth in row.get("truth") or []:
            if truth["kind"] == "straggler":
                names.append(f"{OF_STRAGGLERS[truth['cause']]}@{truth['rank']}")
            elif truth["kind"] in OF_STEPS:
                names.append(OF_STEPS[truth["kind"]])
        may = () if row["case"].startswith("own") else ("*",)
        if row.get("source", "").endswith("of slow_compute") and not names:
            may = ("slow-compute@1",)  # a spoilt copy: whoever can still tell is right
        case = Case(truth=tuple(names), may=may)
        yield judge(Judged(row["case"], case), [folder / row["case"] / name for name in row["files"]])


def _of_cases(folder: Path, cases: dict[str, Case]) -> Iterator[Judged]:
    for path in sorted(folder.iterdir()):
        if path.name not in cases or not (path / "rank0.json.gz").exists():
            continue
        judged = Judged(path.name, cases[path.name])
        times = json.loads((path / "times.json").read_text()) if (path / "times.json").exists() else {}
        if times.get("doubt"):
            print(f"{path.name} left out: {times['doubt']}")
            continue
        if times.get("without"):
            without, own = times["without"], times["with"][-len(times["without"]) :]
            gains = [1 - base / step for base, step in zip(without, own, strict=True)]
            judged.gain, judged.noise = median(gains), (max(gains) - min(gains)) / 2 + 0.02
        if cases is GPU and any((folder / GPU_PAIRS.get(path.name, "none")).glob("*.seconds")):
            judged.gain = 1 - _mean(folder / GPU_PAIRS[path.name]) / _mean(path)
            judged.noise = NOISE_ON_GPU
        yield judge(judged, sorted(path.glob("*.json.gz")))


def _mean(folder: Path) -> float:
    return mean(float(json.loads(path.read_text())["mean"]) for path in folder.glob("*.seconds"))


def judged_in(folder: Path) -> Iterator[Judged]:
    if (folder / "index.json").exists():
        return _of_index(folder)
    on_gpu = any("cuda" in path.read_text() for path in folder.glob("*/options.json"))
    return _of_cases(folder, GPU if on_gpu else CASES)


#: The change by removing the injected fault of a case, by the rule that advises it.
def of_plant(one: Judged) -> str:
    options: Any = {**one.case.plant}
    if one.name in ("view", "healthy"):
        return "gradients-copied-back"
    names = [re.sub(r"\|[^@]*", "", truth) for truth in one.case.truth if "@" not in truth]
    if len(one.case.truth) == 1 and names:
        return names[0]
    by_option = {"item": "sync-points", "optimizer": "optimizer-bound", "model": "buffers-broadcast"}
    by_option |= {"workers": "copies-hold-up-the-host", "ddp": "no-overlap"}
    return next((name for option, name in by_option.items() if option in options), "")


def bounds(all_: list[Judged]) -> None:
    print("\n| case | rule | gain when removed | noise | bound | above? | tight? |\n|---|---|---|---|---|---|---|")
    kept, tight, count = 0, 0, 0
    for one in all_:
        name = of_plant(one)
        if one.gain is None or not name or "slow-data-loading" in one.found:  # which advises nothing
            continue
        bound = one.bounds.get(name, 0.0)
        fits, is_tight = one.gain <= bound + one.noise, bound <= 2 * max(one.gain, 0) + 0.05
        count, kept, tight = count + 1, kept + fits, tight + is_tight
        print(
            f"| {one.name} | {name} | {one.gain:.1%} | {one.noise:.1%} | {bound:.1%} |"
            f" {'' if fits else 'GAIN ABOVE'} | {'' if is_tight else 'loose'} |"
        )
    print(f"\nbounds: gain not above in {kept} of {count}, tight in {tight} of {count}")


def main(folders: list[str]) -> None:
    all_: list[Judged] = []
    for folder in folders:
        of_folder = list(judged_in(Path(folder)))
        print(
            f"\n## {folder}\n\n| case | truth | found | told | missed | innocents | nobody planted |\n"
            + "|---" * 7
            + "|"
        )
        for one in of_folder:
            cells = [one.case.truth, one.found, one.told, one.missed, one.innocents, one.surplus]
            texts = [" ".join(cell) for cell in cells]
            print(f"| {one.name} | {' | '.join(texts)} |" + (f" {one.why}" if one.why else ""))
        truths = sum(len(one.case.truth) for one in of_folder)
        right = truths - sum(len(one.missed) for one in of_folder)
        print(
            f"\n{folder}: causes right {right} of {truths}, by the first name and as a warning "
            f"{right - sum(len(one.weak) for one in of_folder)}; innocent ranks "
            f"{sum(len(one.innocents) for one in of_folder)} in {len(of_folder)} cases; warnings that nothing was "
            f"planted for {sum(len(one.surplus) for one in of_folder)}"
        )
        all_ += of_folder
    bounds(all_)


if __name__ == "__main__":
    main(sys.argv[1:])
