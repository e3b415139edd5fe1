"""Credentials stay out of recordings, settings stay in."""

import pytest

from ddp_doctor.parse.redact import KEPT_BACK, LONGEST_RECORDED, is_withheld, shielded
from ddp_doctor.settings.table import variables


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PET_RDZV_ENDPOINT", "etcd://user:hunter2@host:2379"),
        ("PET_RDZV_CONF", "timeout=5,password=hunter2"),
        ("TORCH_HUB_TOKEN", "abc"),
        ("NCCL_MY_SECRET", "abc"),
        ("NCCL_NOTE", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
        ("NCCL_NOTE", "AKIAIOSFODNN7EXAMPLE"),
        ("NCCL_NOTE", "-----BEGIN RSA PRIVATE KEY-----"),
        ("TORCH_NOTE", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x"),
        ("NCCL_NOTE", "x" * (LONGEST_RECORDED + 1)),
        ("NCCL_TOPO_FILE", "https://store/topo.xml?se=2030&sig=abc%3D"),
        ("NCCL_TUNER_CONFIG_PATH", "s3://x?X-Amz-Signature=abc"),
        ("NCCL_NOTE", "https://api/x?access_token=abc"),
        ("NCCL_CONF_FILE", "/x?api-key=abc"),
        ("NCCL_NOTE", "Bearer abcdefgh"),
        ("NCCL_NOTE", "nvapi-abcdefghijklmnopqrstuvwxyz"),
        ("NCCL_NOTE", "npm_abcdefghijklmnopqrstuvwxyz0123456789"),
        ("NCCL_NOTE", "AIzaSyDdI0hCZtE6vySjMm-WEfRq3CPzqKqqsHI"),
        ("NCCL_NOTE", "wandb_v1_abcdefgh"),
    ],
)
def test_text_like_a_credential_is_withheld(name, value):
    assert is_withheld(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_PKEY", "3"),
        ("NCCL_SOCKET_IFNAME", "eth0,eth1"),
        ("GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY", "/etc/ssl/node.pem"),
        ("PET_RDZV_ENDPOINT", "node0:29400"),
        ("MASTER_ADDR", "node0.cluster.local"),
        ("NCCL_COMM_ID", "[fe80::1]:4444"),
        ("TORCH_HUB_TOKEN", ""),
    ],
)
def test_settings_are_recorded(name, value):
    assert not is_withheld(name, value)


def test_credential_is_replaced_in_values_that_a_probe_repeats():
    env = {"GLOO_SOCKET_IFNAME": "Bearer abcdefgh", "NCCL_SOCKET_IFNAME": "eth0"}

    assert shielded(env, tuple(env)) == {"GLOO_SOCKET_IFNAME": KEPT_BACK, "NCCL_SOCKET_IFNAME": "eth0"}
    assert shielded({}, ("GLOO_SOCKET_IFNAME",)) == {}


def test_no_known_variable_is_withheld_for_its_name():
    assert not [name for name in variables() if is_withheld(name, "1")]
