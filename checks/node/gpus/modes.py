"""DD320, DD323: how GPUs are set up, where it costs something and nothing is broken."""

from collections.abc import Iterator

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.knowledge.gpu import nvml
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.gpus import Hits, hits_of
from ddp_doctor.wording.gpus import Sight, gpu_draft

KEEP_DRIVER_LOADED = by_operator(
    "Let nvidia-persistenced run, so that the driver keeps the GPUs initialised between processes.",
    "systemctl enable --now nvidia-persistenced",
    cost="needs root; the GPUs draw a little more power when idle",
    undo="systemctl disable --now nvidia-persistenced",
    references=(nvml.PERSISTENCE_GUIDE,),
)


@rule("DD320", "persistence-mode-off", Severity.INFO, GpusFact)
def persistence_off(recording: Recording) -> Iterator[Draft]:
    """GPUs that the driver shuts down when nobody uses them.

    What it finds
        Persistence mode off on a GPU that no display or other process keeps awake.

    Why it matters
        The first process on the GPU waits some seconds per GPU for the driver to start it, and set clocks and
        limits are forgotten in between.

    Remedy
        Let nvidia-persistenced run.

    References
        NVIDIA Driver Persistence
    """
    hits = hits_of(
        recording, lambda gpu: gpu.persistence_mode is False and not gpu.display_active and not gpu.processes
    )
    if hits:
        yield gpu_draft(
            recording,
            hits,
            "persistence mode is off",
            lambda _: Sight("persistence mode off", expected_from=nvml.PERSISTENCE_GUIDE),
            KEEP_DRIVER_LOADED,
            detail="Each job that comes first waits some seconds per GPU until the driver has started it.",
            severity=Severity.INFO,
        )


@rule("DD323", "gpu-without-peer-access", Severity.INFO, GpusFact)
def no_peer_access(recording: Recording) -> Iterator[Draft]:
    """GPUs that cannot reach each other's memory, by the way they are virtualised or protected.

    What it finds
        A virtual GPU (vGPU), or confidential computing switched on. A whole GPU passed through to a virtual
        machine is none of these.

    Why it matters
        There may be no peer-to-peer path: NCCL then copies through the host's memory, and with confidential
        computing encrypts on the way.

    Remedy
        None, where that is meant; expect the rates of copies through the host.

    References
        NVIDIA Virtual GPU Software User Guide; NVIDIA Confidential Computing deployment guides
    """
    virtual = hits_of(recording, lambda gpu: gpu.virtualization == "vgpu")
    if virtual:
        yield _draft(recording, virtual, "a virtual GPU, which may have no peer-to-peer path", "vGPU")
    protected = _protected(recording)
    if protected:
        words = "confidential computing is on, which encrypts what crosses the bus"
        yield _draft(recording, protected, words, "confidential computing on")


def _protected(recording: Recording) -> list[tuple[int, Gpu]]:
    on = [seen for seen in recording.facts(GpusFact) if seen.fact.confidential_compute]
    return [(seen.node, gpu) for seen in on for gpu in seen.fact.of_the_job()]


def _draft(recording: Recording, hits: Hits, words: str, seen: str) -> Draft:
    return gpu_draft(
        recording,
        hits,
        words,
        lambda gpu: Sight(f"{seen} ({gpu.name})", expected_from="whole GPUs reach each other directly"),
        detail="NCCL then moves data through the host's memory, at a fraction of the rate.",
        severity=Severity.INFO,
    )
