"""Of which nodes' software the rules speak."""

from ddp_doctor.facts.software import Software
from ddp_doctor.model.choices import Backend
from ddp_doctor.model.recording import Recording, Seen


def of_the_job(recording: Recording) -> list[Seen[Software]]:
    """The facts to judge: a prolog runs in an interpreter of root's, whose torch is not the job's."""
    return [] if recording.options.command == "prolog" else recording.facts(Software)


def with_gpus(recording: Recording) -> list[Seen[Software]]:
    """The nodes whose NVIDIA GPUs the job is meant to use."""
    return [
        seen
        for seen in of_the_job(recording)
        if seen.fact.gpu_devices > 0
        and seen.fact.driver is not None
        and seen.fact.gpus_hidden_by is None
        and recording.options.backend is not Backend.GLOO
    ]
