"""The advice that ``run --from-trace`` reads from a report of ``trace``, and the inputs that it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.app.advice import load_advice
from ddp_doctor.model.choices import UsageError

TINY = {"code": "DDT120", "at_most": 0.4, "setting": "bucket_cap_mb", "value": None, "had": 1.0}
SEARCH = {"code": "DDT121", "at_most": 0.1, "setting": "find_unused_parameters", "value": False, "had": True}
NO_SYNC = {"code": "DDT122", "at_most": 0.5}
REPORT: dict[str, Any] = {"verdict": "healthy", "exit_code": 0, "findings": []}


def written(folder: Path, content: object) -> str:
    path = folder / "trace.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_each_argument_of_ddp_is_tried_once_and_other_advice_is_not(tmp_path):
    again = {**TINY, "value": 50.0, "at_most": 0.2}
    path = written(tmp_path, {**REPORT, "advice": [NO_SYNC, TINY, again, SEARCH]})

    assert [(each.setting, each.value, each.had) for each in load_advice(path, "net:make")] == [
        ("bucket_cap_mb", None, 1.0),
        ("find_unused_parameters", False, True),
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (REPORT, "is a report of ddp-doctor, but not of `trace`; for --from-trace, write a report with"),
        ({"readings": [], "run_id": ""}, "is a recording of ddp-doctor; for --from-trace, write"),
        ({"traceEvents": []}, "is not a report; for --from-trace, write a report with"),
        ([], "is not a report; for --from-trace"),
        ("", "it is empty"),
        ({**REPORT, "advice": []}, "does not recommend any DistributedDataParallel argument"),
        ({**REPORT, "advice": [NO_SYNC]}, "does not recommend any DistributedDataParallel argument"),
        (
            {**REPORT, "advice": [{**TINY, "setting": "later"}]},
            "does not recommend any DistributedDataParallel argument",
        ),
        ({**REPORT, "advice": [{**TINY, "value": "many"}]}, "advice.0.value.bool has the invalid value 'many'"),
        ({**REPORT, "advice": 1}, "advice has the invalid value '1'"),
    ],
)
def test_report_without_anything_to_try_is_refused(tmp_path, content, says):
    with pytest.raises(UsageError) as refused:
        load_advice(written(tmp_path, content), "net:make")

    assert says in str(refused.value)


def test_advice_without_a_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match="requires a model; add --model MODULE:FACTORY"):
        load_advice(written(tmp_path, {**REPORT, "advice": [TINY]}), "")
