"""Text from a paste reaches people, files and settings as plain text or not at all."""

import json
import re
import unicodedata
from pathlib import Path

import pytest

from ddp_doctor.cli import commands
from ddp_doctor.cli.outputs import Outputs

EVIL = "\u202e\u200b\x9b31m\x07$(reboot)`id`;<script>alert(1)</script>"
MATRIX = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tSYS\tPIX\t0-7\nGPU1\tSYS\t X \tSYS\t8-15\n"
    "NIC0\tPIX\tSYS\t X \n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
NCCL = (
    '<system version="1">\n<cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel">\n'
    '<pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s" link_width="16"/>\n'
    '<pci busid="0000:02:00.0" class="0x020700"><nic><net name="mlx5_0" guid="0x1"/></nic></pci>\n'
    '<pci busid="0000:03:00.0" class="0x020000"><nic><net name="eth0" guid="0x0"/></nic></pci>\n'
    "</cpu>\n</system>\n"
)
ESCAPED = EVIL.translate({ord("<"): "&lt;", ord(">"): "&gt;", 0x9B: "", 7: ""})
NVLINK = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
TEXTS = {
    "a name in the legend": MATRIX.replace("mlx5_0", "mlx5_0" + EVIL),
    "a name in the header": MATRIX.replace("NIC0", "mlx5_0" + EVIL),
    "a code": MATRIX.replace("SYS", "SYS" + EVIL),
    "CPUs": MATRIX.replace("8-15", "8-15" + EVIL),
    "a label": MATRIX.replace("\nGPU1", "\nGPU1" + EVIL),
    "a status of P2P": f"$ nvidia-smi topo -p2p r\n\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\t{EVIL}\tX\n",
    "the model of a GPU": NVLINK.replace("H100", "H100" + EVIL),
    "line that starts with `GPU N:` comes before": NVLINK.replace("26.562", "26.562" + EVIL),
    "names in NCCL's file": re.sub("mlx5_0|eth0", r"\g<0>" + ESCAPED, NCCL),
    "values in NCCL's file": re.sub("GenuineIntel|16.0 GT/s", r"\g<0>" + ESCAPED, NCCL),
}


@pytest.mark.parametrize("name", TEXTS)
def test_hostile_text_of_a_paste_is_never_output(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paste, report, settings, picture = (tmp_path / kind for kind in ("txt", "json", "env", "svg"))
    paste.write_text(TEXTS[name])
    outputs = Outputs({"json": str(report), "env": str(settings), "svg": str(picture)})

    assert commands.topology(str(paste), outputs) in {0, 1, 2, 3}

    said = capsys.readouterr()
    drawn = picture.read_text() if picture.exists() else ""
    words = [said.out, said.err, settings.read_text(), drawn, *strings(json.loads(report.read_text()))]
    bad = [sign for text in words for sign in text if sign not in "\n\t" and is_control(sign)]
    assert bad == []
    assert "<script" not in drawn
    assert not re.search(r"^[^#\n]*[$`;|&<>]", settings.read_text(), re.MULTILINE)


def strings(value: object) -> list[str]:
    """Return all keys and texts in a JSON value."""
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in strings(part)]
    return [value] if isinstance(value, str) else []


def is_control(sign: str) -> bool:
    return unicodedata.category(sign) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
