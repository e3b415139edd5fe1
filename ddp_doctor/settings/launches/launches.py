"""The launches in the text of a job script, a manifest or a launcher's configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ddp_doctor.facts.node.env_vars import HeaderFault, Launch, Unchecked
from ddp_doctor.parse.json_value import OTHER_SHAPE, json_value
from ddp_doctor.parse.yaml_text import Node, Scalar, read_yaml
from ddp_doctor.settings.files import ReadFile, read_none
from ddp_doctor.settings.launches.headers import array_of, faults_of_header, job_of
from ddp_doctor.settings.launches.manifests import Manifest
from ddp_doctor.settings.launches.running import Start
from ddp_doctor.settings.launches.values import Part, Values

_MANIFEST = re.compile(r"^(?:kind: *[\"']?[A-Z]|num_machines:)", re.MULTILINE)
_JSON = re.compile(r"\s*\{")
#: Jinja and Helm: a line of the template language, and a placeholder for a value.
_OF_TEMPLATE = re.compile(
    r"\s*(?:\{%.*%\}|\{\{-?\s*(?:if|else|end|range|with|define|include|template|block|toYaml|/\*).*\}\})\s*"
)
_FILLED_IN = re.compile(r"\{\{.{0,300}?\}\}|\{%.{0,300}?%\}")
#: A placeholder for the reader to fill in, as in ``--rdzv-endpoint=<HEAD>:29500``; not a redirection.
_PLACEHOLDER = re.compile(r"(?<=[=\"' \t])<[A-Za-z](?:[\w .-]{0,60}\w)?>(?=[:\"'\s]|$)", re.MULTILINE)
_LONGEST_LINE = 32_768
_MOST_LINES = 100_000


@dataclass(frozen=True)
class Launches:
    """The launches in a text, and the lines that were not understood."""

    job: Launch | None = None
    launches: tuple[Launch, ...] = ()
    unchecked: tuple[Unchecked, ...] = ()
    unread: tuple[Unchecked, ...] = ()
    header_faults: tuple[HeaderFault, ...] = ()


def launches_of(lines: Sequence[str], read_file: ReadFile = read_none) -> Launches:
    """Return the launches in these lines and in the scripts they run; other lines are listed with the reason."""
    kept = [line if len(line) <= _LONGEST_LINE else "" for line in lines[:_MOST_LINES]]
    text = Values.cleaned("\n".join(kept))
    job = job_of(kept)
    header_faults = tuple(faults_of_header(kept))
    reader = Manifest(text, job, read_file)
    for number, (line, as_given) in enumerate(zip(kept, lines, strict=False), 1):
        if line != as_given or _OF_TEMPLATE.fullmatch(line):
            reader.note_unread(number, "a line of a template" if line else "a line that is too long")
    if "{{" in text or "{%" in text:
        plain = ["" if _OF_TEMPLATE.fullmatch(line) else line for line in text.split("\n")]
        text = _FILLED_IN.sub(lambda found: reader.values.token(Part("same", found[0])), "\n".join(plain))
    if "<" in text:
        text = _PLACEHOLDER.sub(lambda found: reader.values.token(Part("given", found[0])), text)
    if _JSON.match(text):
        reader.read_documents([_of_json(text)])
    elif _MANIFEST.search(text) and not text.startswith("#!") and job is None:
        documents = read_yaml(text.split("\n"))
        job = reader.read_documents(documents.read)
        for number in documents.unread:
            reader.note_unread(number, "no YAML")
    else:
        count = array_of(kept)
        is_array = count is not None and (job is None or job.nodes in (None, (1, 1)))
        reader.read_script(text, Start("array", 1, 0, {"nodes": (count, count)}) if is_array else None)
    reader.leave_if_missed(text)
    noted = tuple(reader.unchecked), tuple(reader.unread)
    return Launches(job or reader.job, tuple(reader.launches), *noted, header_faults)


def _of_json(text: str) -> Node:
    """Convert a configuration in JSON: its scalars become text."""

    def as_text(value: object) -> Node:
        if isinstance(value, dict):
            return {str(key): as_text(each) for key, each in value.items()}
        return Scalar(json.dumps(value).strip('"'), 1)

    try:
        return as_text(json_value(text))
    except OTHER_SHAPE:
        return Scalar("")
