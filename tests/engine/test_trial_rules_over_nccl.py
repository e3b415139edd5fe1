"""The settings that the rules over trials blame for a failed start of NCCL, by its own messages."""

import pytest

from ddp_doctor.engine.hang.rules import deaths, failed_starts, settings
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.model.recording import Recording
from tests.readings import collected, only
from tests.recordings import load


def test_failure_without_trials_blames_only_the_setting_in_its_message():
    crash, text = (
        load(f"hang/{name}").model_copy(update={"experiments": ()})
        for name in ("nccl-buffsize-kills-every-rank", "nccl-net-ib-without-adapters")
    )
    environment = collected("env_vars", EnvVars(variables={"NCCL_NET": "IB", "NCCL_DEBUG": "WARN"}))

    assert only(deaths.died.apply(crash)).culprits == ()
    assert only(failed_starts.everywhere.apply(text)).culprits == ()
    alone = only(failed_starts.everywhere.apply(text.model_copy(update={"readings": (environment,)})))
    assert [culprit.name for culprit in alone.culprits] == ["NCCL_NET"]


@pytest.mark.parametrize(
    ("message", "variables", "spoken_of"),
    [
        ('Unrecognized element token "garbage" when', {"NCCL_ALGO": "garbage", "NCCL_PROTO": "LL"}, ["NCCL_ALGO"]),
        ('Unrecognized element token "LL256" when', {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL256"}, ["NCCL_PROTO"]),
        ("NCCL_ALGO was set to NVLS.", {"NCCL_ALGO": "NVLS", "NCCL_PROTO": "LL"}, ["NCCL_ALGO"]),
        ("XML Parse : expected >, got ' '", {"NCCL_TOPO_FILE": "/a.xml", "NCCL_NET": "IB"}, ["NCCL_TOPO_FILE"]),
        ("network IB not found.", {"NCCL_NET": "IB"}, ["NCCL_NET"]),
        ("Unable to find address for: ib0", {"GLOO_SOCKET_IFNAME": "ib0"}, ["GLOO_SOCKET_IFNAME"]),
        ("Cuda failure 2 'out of memory'", {"NCCL_NET": "IB", "NCCL_IB_TIMEOUT": "2"}, []),
        ("unhandled system error (run with NCCL_DEBUG=INFO for details)", {"NCCL_DEBUG": "INFO"}, []),
        (  # NCCL always has this plug-in, so the reason that keeps it from its adapters is likelier
            "Failed to initialize any NET plugin",
            {"NCCL_NET": "IB", "NCCL_IB_HCA": "mlx5_99"},
            ["NCCL_IB_HCA", "NCCL_NET"],
        ),
    ],
)
def test_settings_that_a_message_is_about_are_in_force_and_meant(message, variables, spoken_of):
    recording = Recording(readings=(collected("env_vars", EnvVars(variables=variables)),))

    assert list(settings.spoken_of(recording, f"NCCL error\nLast error:\n{message}", 0)) == spoken_of
