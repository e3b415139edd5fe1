"""Recordings within a recording."""

from typing import ClassVar

from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Recording


class RecordingFact(Fact):
    """A recording of the doctor's own, given beside a job's output; it is judged as its own command does."""

    KIND: ClassVar[str] = "recording/1"

    file: str
    recording: Recording
