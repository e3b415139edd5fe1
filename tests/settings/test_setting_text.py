"""Settings in a text: the settings of each form, the line that counts, and values that are never kept."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor import app
from ddp_doctor.facts.node.env_vars import SettingText
from ddp_doctor.model.report import EnvReport
from ddp_doctor.settings.text.setting_text import NoSettings, read_setting_text
from ddp_doctor.settings.text.shell_words import commands

LOGIN = "PATH=/usr/bin\nHOME=/home/user\nPWD=/home/user\n"


def values(text: str) -> dict[str, str | None]:
    return {name: one.value for name, one in read_setting_text(text).in_force().items()}


def written(text: str, name: str):
    return [one for one in read_setting_text(text).written if one.name == name]


def test_a_script_line_sets_the_variables_that_it_passes_to_a_command():
    cases = [
        ("export NCCL_DEBUG=INFO", {"NCCL_DEBUG": "INFO"}),
        ("  export  NCCL_DEBUG=INFO NCCL_ALGO='Ring Tree'  # why", {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring Tree"}),
        ('declare -x NCCL_DEBUG="INFO"', {"NCCL_DEBUG": "INFO"}),
        ("NCCL_DEBUG=INFO python train.py", {"NCCL_DEBUG": "INFO"}),
        ("env -u X NCCL_DEBUG=INFO python train.py", {"NCCL_DEBUG": "INFO"}),
        (
            "env NCCL_DEBUG=INFO NCCL_ALGO=Ring python train.py NCCL_PROTO=LL",
            {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"},
        ),
        ("srun --mpi=pmix env NCCL_DEBUG=INFO python train.py", {"NCCL_DEBUG": "INFO"}),
        ("#SBATCH --export=ALL,NCCL_DEBUG=INFO,NCCL_ALGO=Ring", {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}),
        ("#SBATCH --export ALL,NCCL_DEBUG=INFO", {"NCCL_DEBUG": "INFO"}),
        ("srun -n 2 --export=ALL,NCCL_IB_HCA=mlx5_0,mlx5_1 python x.py", {"NCCL_IB_HCA": "mlx5_0"}),
        (
            "docker run -e NCCL_IB_HCA=mlx5_0,mlx5_1 --env=NCCL_ALGO=Ring -eNCCL_PROTO=LL img",
            {"NCCL_IB_HCA": "mlx5_0,mlx5_1", "NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
        ),
        (
            "apptainer exec --env NCCL_ALGO=Ring,NCCL_PROTO=LL img.sif python x.py",
            {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
        ),
        ("mpirun -np 2 -x NCCL_DEBUG=INFO -x PATH python x.py", {"NCCL_DEBUG": "INFO"}),
        ("mpiexec -genv NCCL_DEBUG INFO -env NCCL_ALGO=Ring python x.py", {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}),
        (
            "srun bash -lc 'export NCCL_DEBUG=INFO; OMP_NUM_THREADS=4 torchrun x.py'",
            {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"},
        ),
        ("if [ -d /x ]; then export NCCL_DEBUG=INFO; fi", {"NCCL_DEBUG": "INFO"}),
        ("+ export NCCL_DEBUG=INFO", {"NCCL_DEBUG": "INFO"}),
        ("setenv NCCL_DEBUG INFO", {"NCCL_DEBUG": "INFO"}),
        ('ENV NCCL_DEBUG=INFO NCCL_ALGO="Ring"', {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}),
        ("ENV NCCL_DEBUG INFO", {"NCCL_DEBUG": "INFO"}),
        ("ENVS='NCCL_DEBUG=INFO torchrun x.py'\neval $ENVS", {"NCCL_DEBUG": "INFO"}),
        ('OPTS="-x NCCL_DEBUG=INFO -x PATH"\nmpirun -np 2 ${OPTS} x', {"NCCL_DEBUG": "INFO"}),
        ('CMD="mpirun \\\n -x NCCL_DEBUG=INFO \\\n x"\necho $CMD\n$CMD', {"NCCL_DEBUG": "INFO"}),
        ('HELP="export NCCL_DEBUG=INFO to see more"\necho $HELP', {}),
        ("ARGS=(\n  '-e NCCL_DEBUG=INFO'\n  NCCL_ALGO=Ring\n)", {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}),
        ("bwrap --setenv NCCL_DEBUG INFO python x.py", {"NCCL_DEBUG": "INFO"}),
        ('ssh node1 "export NCCL_DEBUG=INFO; python x.py"', {"NCCL_DEBUG": "INFO"}),
        ("[me@node1 x]$ export NCCL_DEBUG=INFO", {"NCCL_DEBUG": "INFO"}),
        ("(base) me@node1:~/x$ NCCL_DEBUG=INFO python x.py", {"NCCL_DEBUG": "INFO"}),
        ("#PBS -v NCCL_DEBUG=INFO,NCCL_ALGO=Ring", {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}),
        ("echo NCCL_DEBUG=INFO | sudo tee -a /etc/nccl.conf", {"NCCL_DEBUG": "INFO"}),
        ('echo "export NCCL_DEBUG=INFO" >> ~/.bashrc', {"NCCL_DEBUG": "INFO"}),
        ("echo NCCL_DEBUG=INFO > ~/.deepspeed_env", {"NCCL_DEBUG": "INFO"}),
        ("echo NCCL_DEBUG=INFO > /dev/null", {}),
        ("cat > /etc/nccl.conf <<'EOF'\nNCCL_DEBUG=INFO\nEOF\nNCCL_ALGO=Ring", {"NCCL_DEBUG": "INFO"}),
        ("export SINGULARITYENV_NCCL_DEBUG=INFO", {"NCCL_DEBUG": "INFO"}),
        ("APPTAINERENV_NCCL_DEBUG=INFO apptainer run img.sif", {"NCCL_DEBUG": "INFO"}),
        ("SINGULARITYENV_NCCL_DEBUG=INFO", {}),
        ("export NCCL_DEBUG=INFO\nexport SINGULARITYENV_NCCL_DEBUG=$NCCL_DEBUG", {"NCCL_DEBUG": "INFO"}),
        ("export NCCL_DEBUG=INFO\ndocker run -e NCCL_DEBUG=${NCCL_DEBUG} img", {"NCCL_DEBUG": "INFO"}),
        ("NCCL_DEBUG=INFO\nmpirun -x NCCL_DEBUG=${NCCL_DEBUG:-WARN} x", {"NCCL_DEBUG": "INFO"}),
        (
            'export NCCL_SOCKET_IFNAME=ib0\nexport GLOO_SOCKET_IFNAME="$NCCL_SOCKET_IFNAME"',
            {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0"},
        ),
        ("export NCCL_DEBUG=INFO\nunset NCCL_DEBUG\nrun -e NCCL_DEBUG=$NCCL_DEBUG", {"NCCL_DEBUG": "$NCCL_DEBUG"}),
        ('Environment="NCCL_DEBUG=INFO" NCCL_ALGO=Ring', {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}),
        ("set -gx NCCL_DEBUG INFO", {"NCCL_DEBUG": "INFO"}),
        ("set -x", {}),
        ("export NCCL_DEBUG = INFO", {}),
        ("export NCCL_DEBUG =INFO", {}),
        ("RUN export NCCL_DEBUG=INFO && make", {}),
        ("# export NCCL_DEBUG=INFO", {}),
        ("echo NCCL_DEBUG=INFO", {}),
        ("python train.py NCCL_DEBUG=INFO", {}),
        ("grep -e NCCL_DEBUG=INFO log", {}),
    ]
    assert [(line, values(f"#!/bin/bash\n{line}\n")) for line, _ in cases] == cases


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("if [ $A = a ]; then\n export NCCL_ALGO=1\nelse\n export NCCL_ALGO=2\nfi\n", ["2", "1"]),
        (
            "if a; then export NCCL_ALGO=1; elif b; then export NCCL_ALGO=2; else export NCCL_ALGO=3; fi",
            ["3", "2", "1"],
        ),
        ("case $A in\n a*) export NCCL_ALGO=1 ;;\n b)\n  export NCCL_ALGO=2\n  ;;\nesac\n", ["2", "1"]),
        ("case $A in a) export NCCL_ALGO=1;; *) export NCCL_ALGO=2;; esac\n", ["2", "1"]),
        ("export NCCL_ALGO=1\n[ -d /x ] && export NCCL_ALGO=2\n", ["2", "1"]),
        ("export NCCL_ALGO=1\n[ -d /x ] ||\n  export NCCL_ALGO=2\n", ["2", "1"]),
        ("export NCCL_ALGO=1\nfor i in 1; do\n export NCCL_ALGO=2\ndone\n", ["2", "1"]),
        ("export NCCL_ALGO=1\nsetup() {\n export NCCL_ALGO=2\n}\n", ["2", "1"]),
        ("export NCCL_ALGO=1\nsetup ()\n{\n export NCCL_ALGO=2\n}\n", ["2", "1"]),
        ("export NCCL_ALGO=1\nfunction setup {\n export NCCL_ALGO=2\n}\n", ["2", "1"]),
        ("export NCCL_ALGO=1\nif a; then\n unset NCCL_ALGO\nfi\n", ["1"]),
        ("if a; then\n export NCCL_ALGO=1\n unset NCCL_ALGO\nfi\n", []),
        ("if a; then export NCCL_ALGO=1; fi\nexport NCCL_ALGO=2\n", ["2"]),
        ("if a; then\n export NCCL_ALGO=1\n export NCCL_ALGO=2\nfi\n", ["2"]),
        ("export NCCL_ALGO=1\n{ export NCCL_ALGO=2; }\n", ["2"]),
        ("if a; then echo; fi\nexport NCCL_ALGO=1\nexport NCCL_ALGO=2\n", ["2"]),
        ("a && b\nexport NCCL_ALGO=1\nexport NCCL_ALGO=2\n", ["2"]),
    ],
)
def test_all_values_that_may_apply_in_branches_are_reported(script, expected):
    found = read_setting_text(f"#!/bin/bash\n{script}").possible().get("NCCL_ALGO", ())
    assert [one.value for one in found] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('env:\n- name: NCCL_DEBUG\n  value: "INFO"  # c\n', {"NCCL_DEBUG": "INFO"}),
        ("- {name: NCCL_DEBUG, value: INFO}\n", {"NCCL_DEBUG": "INFO"}),
        ('args: ["-c", "export NCCL_DEBUG=INFO && torchrun x.py"]\n', {"NCCL_DEBUG": "INFO"}),
        ('command:\n- bash\n- "-c"\n- "export NCCL_DEBUG=INFO; torchrun x.py"\n', {"NCCL_DEBUG": "INFO"}),
        ("environment:\n  NCCL_DEBUG: ~\n  NCCL_ALGO: null\n  NCCL_PROTO: LL\n", {"NCCL_PROTO": "LL"}),
        ("environment:\n  NCCL_DEBUG: INFO\n  NCCL_ALGO: 'Ring'\n", {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}),
        ('environment:\n  - NCCL_DEBUG=INFO\n  - "NCCL_ALGO=Ring"\n', {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}),
        ('"Env": [\n  "NCCL_DEBUG=INFO",\n  "NCCL_ALGO=Ring"\n]\n', {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}),
        ("- name: NCCL_DEBUG\n  image: x\n  ports: y\n  value: INFO\n", {}),
    ],
)
def test_lines_of_manifests_are_read(text, expected):
    assert values(f"apiVersion: v1\n{text}") == expected


def test_the_output_of_env_is_read_literally_with_quotes_and_dollars():
    text = LOGIN + 'NCCL_IB_HCA="mlx5_0" x\nNCCL_NOTE=$A\nBASH_FUNC_x%%=() {  echo\n}\n'
    found = read_setting_text(text)
    assert found.form == "environment"
    assert values(text) == {"NCCL_IB_HCA": '"mlx5_0" x', "NCCL_NOTE": "$A"}
    assert all(one.depends_on is None for one in found.written)


def test_an_environ_file_with_zero_bytes_is_the_output_of_env():
    assert values(LOGIN.replace("\n", "\0") + "NCCL_DEBUG=INFO\0") == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize("mark", ["BASHOPTS=x\n", 'declare -x SHLVL="1"\n', "export SHLVL='1'\n"])
def test_quotes_printed_by_a_shell_are_removed(mark):
    assert values(LOGIN + mark + "NCCL_IB_HCA='mlx5_0 x'\n") == {"NCCL_IB_HCA": "mlx5_0 x"}


def test_a_bare_assignment_in_a_script_does_not_count_until_it_is_exported():
    script = "#!/bin/bash\nNCCL_DEBUG=INFO\nNCCL_ALGO=Ring\nexport NCCL_ALGO\npython x.py\n"
    assert values(script) == {"NCCL_ALGO": "Ring"}
    assert [one.void for one in written(script, "NCCL_DEBUG")] == ["is not exported, so no command sees it"]
    assert values("#!/bin/sh\nset -a\nNCCL_DEBUG=INFO\nset +a\nNCCL_ALGO=Ring\n") == {"NCCL_DEBUG": "INFO"}
    assert values("#!/bin/sh\nexport NCCL_DEBUG=WARN\nNCCL_DEBUG=INFO\n") == {"NCCL_DEBUG": "INFO"}
    assert values("NCCL_DEBUG=INFO\nNCCL_ALGO=Ring\n") == {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}


def test_the_later_line_counts_and_unset_removes_earlier_lines():
    script = "#!/bin/sh\nexport NCCL_DEBUG=WARN\nexport NCCL_DEBUG=INFO\nexport NCCL_ALGO=Ring\nunset NCCL_ALGO\n"
    assert values(script) == {"NCCL_DEBUG": "INFO"}
    assert [one.line for one in written(script, "NCCL_DEBUG")] == [2, 3]
    assert written(script, "NCCL_ALGO")[0].void == "is unset in line 5"


@pytest.mark.parametrize(
    ("value", "default", "name"),
    [
        ("${NCCL_IB_DISABLE:-1}", "1", "NCCL_IB_DISABLE"),
        ('"${HCA-mlx5_0,mlx5_1}"', "mlx5_0,mlx5_1", "HCA"),
        ("${X:=a b}", "a b", "X"),
    ],
)
def test_a_default_counts_and_reports_what_would_override_it(value, default, name):
    [one] = written(f"#!/bin/sh\nexport NCCL_IB_DISABLE={value}\n", "NCCL_IB_DISABLE")

    assert (one.value, one.unless_set, one.depends_on) == (default, name, None)


def test_commands_in_variables_that_call_each_other_are_read_once_each():
    long = " ".join(["$A"] * 2000)
    text = f'#!/bin/sh\nA="-x NCCL_DEBUG=INFO {long}"\n' + f"mpirun {long}\n" * 20

    assert len(written(text, "NCCL_DEBUG")) == 1


def test_the_variables_of_collect_env_belong_to_a_process():
    text = "Collecting environment information...\nPyTorch version: 2.5.1\n\nNCCL_DEBUG=version\nNCCL_CUMEM_ENABLE=0\n"

    script = "\n```\nRun it with:\n#!/bin/bash\nexport A=b\ntorchrun train.py\npip list\nls\n"

    assert values(text) == values(text + script) == {"NCCL_DEBUG": "version", "NCCL_CUMEM_ENABLE": "0"}


@pytest.mark.parametrize(
    "line",
    [
        "`NCCL_DEBUG=INFO NCCL_IB_TC=160 torchrun x.py`",
        "$ NCCL_DEBUG=INFO NCCL_IB_TC=160 torchrun x.py",
        "me@node1:~/work$ NCCL_DEBUG=INFO NCCL_IB_TC=160 torchrun x.py",
        "(env) root@node1:/data/x# NCCL_DEBUG=INFO NCCL_IB_TC=160 torchrun x.py",
    ],
)
def test_a_command_is_read_behind_a_prompt_and_in_markdown(line: str):
    assert values(f"#!/bin/bash\n{line}\n") == {"NCCL_DEBUG": "INFO", "NCCL_IB_TC": "160"}


def test_the_releases_of_collect_env_decide_what_is_read():
    text = "PyTorch version: 2.5.1+cu124\nROCM used to build PyTorch: N/A\n[pip3] nvidia-nccl-cu12==2.21.5\n"
    text += "NCCL_MIN_CTAS=4\n"

    def releases(text: str) -> tuple[str | None, str | None, str | None]:
        report = app.read_settings(text).report
        assert isinstance(report, EnvReport)
        return report.nccl, report.torch, report.rocm

    assert releases(text) == ("2.21.5", "2.5.1+cu124", None)
    assert releases(text.replace("N/A", "6.2.1")) == (None, "2.5.1+cu124", "6.2.1")
    assert releases(f"{text}nvidia-nccl-cu12==2.26.2\n")[0] is None


@pytest.mark.parametrize(
    ("value", "depends_on"),
    [
        ("ib$N", "$N"),
        ('"${NCCL_DEBUG:-$LEVEL}"', "${NCCL_DEBUG:-$LEVEL}"),
        ('"${NCCL_DEBUG:-}"', "${NCCL_DEBUG:-}"),
        ("~/nccl.log", "~"),
        ("'~/nccl.log'", None),
        ("${NCCL_DEBUG:-INFO}0", "${NCCL_DEBUG:-INFO}"),
        ("$(hostname -s)", "$(hostname …)"),
        ("`cat /run/secret`", "$(cat …)"),
        ("'$N'", None),
        (r"\$N", None),
    ],
)
def test_a_value_that_only_the_shell_knows_reports_its_dependency(value, depends_on):
    [one] = written(f"#!/bin/sh\nexport NCCL_SOCKET_IFNAME={value}\n", "NCCL_SOCKET_IFNAME")
    assert one.depends_on == depends_on


def test_lines_that_a_backslash_joins_keep_their_numbers():
    script = "#!/bin/sh\ndocker run \\\n  -e NCCL_DEBUG=INFO \\\n  -e NCCL_ALGO=Ring img\nexport NCCL_PROTO=LL\n"
    assert [(one.name, one.line) for one in read_setting_text(script).written] == [
        ("NCCL_DEBUG", 3),
        ("NCCL_ALGO", 4),
        ("NCCL_PROTO", 5),
    ]


def test_an_export_with_a_space_at_the_equals_sign_is_shown_but_has_no_effect():
    [one] = written("#!/bin/bash\nexport NCCL_DEBUG = INFO\n", "NCCL_DEBUG")
    assert (one.line, one.value, one.void) == (2, "INFO", "has a space next to its =, so it is not set")


def test_a_python_script_is_sent_to_lint():
    with pytest.raises(NoSettings, match="ddp-doctor lint"):
        read_setting_text("#!/usr/bin/env python3\nimport os\nos.environ['NCCL_P2P_DISABLE'] = '1'\n")


@pytest.mark.parametrize("text", ["", "hello: this is prose\n", "\ufffd" * 100, "NCCL_DEBUG=INFO\n" * 3000])
def test_a_text_that_is_neither_environment_nor_script_is_rejected(text):
    with pytest.raises(NoSettings):
        read_setting_text(text)


def test_a_script_or_environment_without_our_variables_is_valid():
    assert read_setting_text("#!/bin/sh\npython x.py\n").written == ()
    assert read_setting_text(LOGIN).written == ()


def test_torchrun_is_found_in_a_call_but_not_in_a_comment():
    assert read_setting_text("#!/bin/sh\nsrun torchrun x.py\n").calls_torchrun
    assert read_setting_text("#!/bin/sh\npython -m torch.distributed.run x.py\n").calls_torchrun
    assert not read_setting_text("#!/bin/sh\n# torchrun x.py\n").calls_torchrun


SECRET = "hunter2xyzzy"


@pytest.mark.parametrize(
    "line",
    [
        f"export AWS_SECRET_ACCESS_KEY={SECRET}",
        f"export WANDB_API_KEY={SECRET}",
        f"export NCCL_API_KEY={SECRET}",
        f"export NCCL_NOTE=https://user:{SECRET}@host/",
        f"export NCCL_NOTE=$(curl -H 'X-Auth: {SECRET}' host)",
        f"docker run -e HF_TOKEN={SECRET} -e NCCL_DEBUG=INFO img",
        f"- name: WANDB_API_KEY\n  value: {SECRET}",
    ],
)
@pytest.mark.parametrize("head", ["#!/bin/sh\n", LOGIN])
def test_a_secret_is_not_kept(line, head):
    assert SECRET not in read_setting_text(head + line + "\n").model_dump_json()


@given(
    st.lists(
        st.sampled_from(
            ["NCCL_DEBUG", "=", "INFO", " ", "\n", "\\", "'", '"', "$(", ")", "export ", "${", "}", "#", ";", "-e "]
        )
    )
)
def test_any_shell_is_read_or_rejected_and_lines_are_in_the_text(pieces):
    text = "".join(pieces)
    try:
        found = read_setting_text(text)
    except NoSettings:
        return
    assert isinstance(found, SettingText)
    assert all(1 <= one.line <= text.count("\n") + 1 for one in found.written)


@given(
    st.text(
        alphabet=st.characters(codec="utf-8", exclude_characters="\r\n\0'\x08\x1b\xa0&", exclude_categories=["Cs"]),
        max_size=60,
    )
)
def test_a_value_in_single_quotes_is_unchanged(value):
    [command] = commands(f"export A='{value}'")
    assert [word.text for word in command] == ["export", f"A={value}"]


@pytest.mark.parametrize("junk", [">" * 400_000, "tee " * 100_000, ".bashrc" * 50_000])
def test_many_redirections_are_read_in_linear_time(junk):
    started = time.process_time()

    read_setting_text(f"export NCCL_DEBUG=INFO\n{junk}")

    assert time.process_time() - started < 5.0  # 0.3 s on an idle machine; it once took minutes


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("$((512 * 1024))", "524288"),
        ('"$((1<<19))"', "524288"),
        ("$(((2+2)*3))", "12"),
        ("$((-7 / 2))", "-3"),
        ("$((2**10))x", "1024x"),
        ("$((N * 2))", None),
        ("$((1 / 0))", None),
        ("$((1 << 70))", None),
        ("$((9**99))", None),
        ("$((010))", None),
        ("$((5 -))", None),
    ],
)
def test_arithmetic_of_numbers_is_a_constant(written: str, value: str | None):
    ((word,),) = commands(f"A={written}")
    assert (word.text, word.depends_on is None) == (f"A={value}" if value else f"A={written}", value is not None)
