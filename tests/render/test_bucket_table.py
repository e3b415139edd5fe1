"""The table of DDP's buckets, of recorded runs and of models with many."""

import pytest

from ddp_doctor.model.report import Measurement
from ddp_doctor.render import tables
from tests.recordings import judged


def shown(situation: str) -> tuple[str, ...]:
    return tables.lines(tables.bucket_table(judged(situation).report.measurements))


def made(count: int, told: int) -> list[Measurement]:
    """Return ``count`` buckets; the fact lists only the first ``told``."""
    return [
        Measurement(
            name="user_model_bucket",
            value=float(25 * 2**20),
            unit="B",
            labels={
                "bucket": number,
                "buckets": count,
                "parameters": 2,
                "first": f"layers.{count - number}.bias",
                "last": f"layers.{count - number}.weight",
            },
        )
        for number in range(told)
    ]


def test_the_buckets_are_shown_with_their_sizes_and_the_parameters_at_their_ends():
    heading, row = shown("user_model/conv-net-with-batch-norm")

    assert heading.split()[:3] == ["bucket", "size", "parameters"]
    assert "in order of readiness" in heading
    assert row.split() == ["0", "1.57", "KiB", "8", "head.bias", "to", "body.0.bias"]


@pytest.mark.parametrize(("count", "told"), [(1, 1), (6, 6), (7, 7), (32, 32), (90, 32)])
def test_few_lines_summarize_many_buckets_without_omitting_any(count, told):
    _, *rows = tables.lines(tables.bucket_table(made(count, told)))
    said = sum(int(row.split()[1]) if "more" in row else 1 for row in rows)

    assert len(rows) <= 6
    assert said == count
    assert rows[0].split() == ["0", "25", "MiB", "2", f"layers.{count}.bias", "to", f"layers.{count}.weight"]


def test_table_is_empty_without_a_model():
    assert tables.lines(tables.bucket_table(())) == ()
