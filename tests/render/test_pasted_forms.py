"""Forms for pasting outside of a shell, read back as SLURM, docker, Kubernetes and torchrun would."""

import json
import os
import re
import shlex
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from ddp_doctor.model.finding import Setting
from ddp_doctor.model.report import Report
from ddp_doctor.remedies.settings_to_apply import SettingsToApply, settings_to_apply
from ddp_doctor.render.pasted import docker_args, env_file, k8s_env, patterns, sbatch_lines, torchrun_args
from tests.render.reports import HERE, error, given_by, hostile_reports, remedy, warning, world
from tests.render.shells import SHELLS, environment, environments, tool
from tests.waiting import LIMIT_S

IFNAME = Setting(name="NCCL_SOCKET_IFNAME", value="=eth1")
GONE = Setting(name="NCCL_P2P_LEVEL", action="unset")
BY_HOST = (
    Setting(name="NCCL_SOCKET_IFNAME", value="eth0", node="node0"),
    Setting(name="NCCL_SOCKET_IFNAME", value="eth1", node="node1"),
)
TWO = world("node0", "node1")
_AS_A_TASK = 'eval "${DDP_DOCTOR_PER_HOST-}"; unset DDP_DOCTOR_PER_HOST; env -0'
ALL = (env_file, sbatch_lines, docker_args, k8s_env, torchrun_args)


# --- read back ---------------------------------------------------------------------------------------


def docker_words(text: str) -> list[str]:
    """The words of the last line; with the comments the words are the same."""
    words = shlex.split(text, comments=True)
    assert shlex.split(text.splitlines()[-1]) == words
    return words


def pod_env(text: str) -> dict[str, str]:
    """Return the variables that a pod gets; only the YAML that the output uses is understood."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    if lines == ["env: []"]:
        return {}
    assert lines[0] == "env:"
    found = {}
    for name, value in zip(lines[1::2], lines[2::2], strict=True):
        assert (name[:10], value[:11]) == ("  - name: ", "    value: ")
        found[name[10:]] = re.sub(r"\$(\$|\([^)]*\))", _expanded, json.loads(value[11:]))
    return found


def _expanded(found: re.Match[str]) -> str:
    return "$" if found[1] == "$" else "expanded"  # like the kubelet


def wanted(given: SettingsToApply, host: str) -> dict[str, str | None]:
    """Return the applied variables on a host; None for an unset one."""
    found: dict[str, str | None] = {}
    for variable in given.variables:
        for branch in () if variable.not_applied else variable.branches:
            names = patterns(branch, variable.namesakes)
            if any(fnmatchcase(host, name) for name in names) and variable.name not in found:
                found[variable.name] = branch.value
    return found


def values(given: SettingsToApply) -> dict[str, str]:
    everywhere = [(one.name, one.everywhere) for one in given.variables if not one.not_applied]
    return {name: branch.value for name, branch in everywhere if branch and branch.value is not None}


# --- whatever stands in it, it is only a value ---------------------------------------------------------


@pytest.fixture(scope="module")
def hostile() -> list[Report]:
    return hostile_reports(60)


@pytest.fixture(scope="module")
def given_out(hostile: list[Report]) -> list[SettingsToApply]:
    return [settings_to_apply(one) for one in hostile]


def test_hostile_reports_also_apply_settings(given_out):
    applied = [one for given in given_out for one in given.variables if not one.not_applied]
    assert sum(bool(one.branches) for one in applied) > 40
    assert sum(bool(one.per_host) for one in applied) > 10
    assert sum(not one.not_applied for given in given_out for one in given.options) > 5


def test_settings_to_apply_are_unchanged_in_the_report(hostile, given_out):
    for report, given in zip(hostile, given_out, strict=True):
        asked = [one for found in report.findings for remedy in found.remedies for one in remedy.settings]
        pairs = {(one.name, None if one.action == "unset" else one.value or "") for one in asked}
        for variable in given.variables:
            assert {(variable.name, branch.value) for branch in variable.branches} <= pairs


@pytest.mark.parametrize("shell", SHELLS)
def test_sourcing_only_sets_the_values(tmp_path, shell, given_out):
    before = {"NCCL_SOCKET_IFNAME": "before", "NCCL_IB_HCA": "before"}
    after = environments(shell, [env_file(one) for one in given_out], tmp_path, before=before)

    for given, found in zip(given_out, after, strict=True):
        changed = {**before, **wanted(given, HERE)}
        assert found == {name: value for name, value in changed.items() if value is not None}


@pytest.mark.parametrize("shell", SHELLS)
def test_tasks_of_a_batch_script_get_only_the_values_of_their_host(tmp_path, shell, given_out):
    texts = [sbatch_lines(one) for one in given_out]
    after = environments(shell, texts, tmp_path, then=_AS_A_TASK)

    for given, found in zip(given_out, after, strict=True):
        assert found == {name: value for name, value in wanted(given, HERE).items() if value is not None}


def test_docker_gets_only_the_values_and_known_options(given_out):
    for given in given_out:
        words = docker_words(docker_args(given))
        options = [one.option for one in given.options if not one.not_applied]
        pairs = [f"{name}={value}" for name, value in values(given).items()]
        assert words == [*options, *(word for pair in pairs for word in ("-e", pair))]


def test_pod_gets_only_the_values(given_out):
    for given in given_out:
        text = k8s_env(given)
        assert pod_env(text) == values(given)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]", text)


@pytest.mark.parametrize("shell", SHELLS)
def test_torchrun_starts_with_only_the_values(tmp_path, shell, given_out):
    tool(tmp_path, "torchrun", 'for word; do export "${word%%=*}=${word#*=}"; done; exec env -0')
    before = {"NCCL_SOCKET_IFNAME": "before"}
    texts = [torchrun_args(one).replace("--master-", "MASTER_") for one in given_out]
    after = environments(shell, texts, tmp_path, then=":", before=before)

    for given, found in zip(given_out, after, strict=True):
        everywhere = [(one.name, one.everywhere) for one in given.variables if one.everywhere and not one.not_applied]
        changed = {**before, **{name.replace("ADDR", "addr"): branch.value for name, branch in everywhere}}
        assert found == {name: value for name, value in changed.items() if value is not None}


@pytest.mark.skipif("zsh" not in SHELLS, reason="zsh is not installed")
@pytest.mark.parametrize("form", [env_file, sbatch_lines, docker_args, torchrun_args])
def test_comments_pasted_into_an_interactive_zsh_do_not_run(tmp_path, form, given_out):
    """Such a shell takes ``#`` for a command, and what follows for its words."""
    lines = dict.fromkeys(line for one in given_out for line in form(one).splitlines() if line[:1] == "#")
    done = subprocess.run(
        ("zsh", "-f", "-i"),
        input="\n".join([*lines, "echo pasted"]).encode(),
        check=False,
        capture_output=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "TERM": "dumb"},
        timeout=LIMIT_S,
    )

    assert done.stdout.endswith(b"pasted\n"), done.stdout[-200:]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ALL)
def test_every_form_of_a_hostile_report_is_text_that_can_be_written(given_out, form):
    for given in given_out:
        text = form(given)
        assert text.encode()
        assert text.endswith("\n")
        assert not re.search("[\x00\x1b\x9b\u202a-\u202e]", text)


# --- each form ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "last"),
    [
        (env_file, "# nothing to set"),
        (sbatch_lines, "# nothing to set"),
        (docker_args, ""),
        (k8s_env, "env: []"),
        (torchrun_args, "torchrun"),
    ],
)
def test_form_without_recommendations_has_a_note_and_is_harmless(form, last):
    lines = form(given_by()).split("\n")
    assert lines[-2:] == [last, ""]
    assert "# nothing to set" in lines


@pytest.mark.parametrize("form", ALL)
def test_a_candidate_is_shown_in_every_form_as_a_comment(form):
    text = form(given_by(warning(IFNAME)))
    shown = [line for line in text.splitlines() if "NCCL_SOCKET_IFNAME" in line]
    assert [line[:2] for line in shown] == ["# "]
    assert shown[0].endswith("   # a candidate, not tried")


def test_variable_of_an_image_to_unset_is_never_set_to_empty():
    docker, pod = (docker_args(given_by(error(GONE, IFNAME))), k8s_env(given_by(error(GONE, IFNAME))))

    assert docker_words(docker) == ["-e", "NCCL_SOCKET_IFNAME==eth1"]
    assert "# unset NCCL_P2P_LEVEL: remove it from ENV of the image, " in docker
    assert pod_env(pod) == {"NCCL_SOCKET_IFNAME": "=eth1"}
    assert "# unset NCCL_P2P_LEVEL: remove it from ENV of the image " in pod


def test_torchrun_starts_without_a_variable_to_unset():
    text = torchrun_args(given_by(error(IFNAME, GONE)))
    assert text.splitlines()[-1] == "env -u NCCL_P2P_LEVEL NCCL_SOCKET_IFNAME='=eth1' torchrun"


def test_variable_that_torchrun_overwrites_becomes_its_option():
    text = torchrun_args(given_by(error(Setting(name="MASTER_ADDR", value="10.0.0.1"))))
    assert text.splitlines()[-1] == "torchrun --master-addr=10.0.0.1"
    assert "--rdzv-endpoint" in text


@pytest.mark.parametrize(
    ("form", "shown", "own"),
    [
        (docker_args, "-e NCCL_SOCKET_IFNAME=eth1", "-e NCCL_SOCKET_IFNAME=eth1"),
        (k8s_env, '{name: NCCL_SOCKET_IFNAME, value: "eth1"}', '    value: "eth1"'),
        (torchrun_args, "NCCL_SOCKET_IFNAME=eth1", "env NCCL_SOCKET_IFNAME=eth1 torchrun"),
    ],
)
def test_values_by_host_are_comments_for_all_and_applied_for_one(form, shown, own):
    given = given_by(error(*BY_HOST), on=TWO)
    for_all = form(given)

    assert f"# on node1 only: {shown}\n" in for_all
    assert for_all.splitlines()[-1] == form(given_by()).splitlines()[-1]
    assert form(given.on("node1")).splitlines()[-1] == own


def test_different_values_of_thousands_of_hosts_are_a_few_comments():
    hosts = [f"node{number}" for number in range(4096)]
    each = [Setting(name="GLOO_SOCKET_IFNAME", value=f"if-{host}", node=host) for host in hosts]
    given = given_by(error(*each), on=world(*hosts))
    for form in (docker_args, k8s_env, torchrun_args):
        text = form(given)
        assert "# and 4088 more values on other hosts; --settings env:FILE has them all\n" in text
        assert len(text) < 4000


def test_too_many_hosts_for_one_variable_of_a_batch_script_are_sent_to_the_env_file(tmp_path):
    hosts = [f"a-long-name-of-a-node-{number:05}" for number in range(4096)]
    each = [Setting(name="GLOO_SOCKET_IFNAME", value=f"if-{host}", node=host) for host in hosts]
    text = sbatch_lines(given_by(error(*each), on=world(*hosts)))
    assert "--settings env:FILE" in text
    assert len(text) < 2000


@pytest.mark.parametrize("shell", SHELLS)
def test_batch_script_exports_common_values_and_passes_values_per_host(tmp_path: Path, shell):
    given = given_by(error(Setting(name="NCCL_IB_HCA", value="=mlx5_0")), error(*BY_HOST, code="DD602"), on=TWO)
    text = sbatch_lines(given)
    batch = environment(shell, text, tmp_path, host="node0")

    assert set(batch) == {"NCCL_IB_HCA", "DDP_DOCTOR_PER_HOST"}
    call = re.search(r"so call: srun (sh -c .*) sh PROGRAM ARGUMENTS", text)
    assert call is not None
    tool(tmp_path, "uname", "echo node1.example.com")
    task = environments(shell, [""], tmp_path, before=batch, then=f"{call[1]} sh env -0")[0]
    assert (task["NCCL_IB_HCA"], task["NCCL_SOCKET_IFNAME"]) == ("=mlx5_0", "eth1")


def test_options_of_a_container_are_arguments_of_docker_and_comments_on_a_pod():
    given = given_by(error(remedy(IFNAME, container=["--shm-size=2g", "--ulimit=memlock=-1", "--cap-add=SYS_NICE"])))
    pod = k8s_env(given)

    assert docker_words(docker_args(given)) == [
        *("--shm-size=2g", "--ulimit=memlock=-1", "--cap-add=SYS_NICE"),
        *("-e", "NCCL_SOCKET_IFNAME==eth1"),
    ]
    assert pod_env(pod) == {"NCCL_SOCKET_IFNAME": "=eth1"}
    assert "emptyDir: {medium: Memory, sizeLimit: 2Gi}, mounted at /dev/shm\n" in pod
    assert 'securityContext: {capabilities: {add: ["SYS_NICE"]}}' in pod


def test_dollar_sign_reaches_a_pod_unchanged():
    given = given_by(error(Setting(name="NCCL_IB_HCA", value="$(HOME)$$x$")))
    assert '"$$(HOME)$$$$x$$"' in k8s_env(given)
    assert pod_env(k8s_env(given)) == {"NCCL_IB_HCA": "$(HOME)$$x$"}
