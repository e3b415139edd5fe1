"""Wrong requests: exit code 2 and one sentence with the reason, before anything runs, is written or is kept."""

import shlex

import pytest

from ddp_doctor.model.error_text import did_you_mean, quoted
from tests.recordings import judged, load

NO_RECORDING, A_RECORDING = "is not a recording of ddp-doctor: ", "is a recording of ddp-doctor, but "
NO_CPUS = b'{"check": "host", "status": "collected", "fact": {"kind": "host/1", "cpus": 0}}'
#: The start of a recording.
V1 = b'{"schema_version": "1.0", "run_id": "x", '


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run --colour", "unknown option '--colour'; run `ddp-doctor run --help` for usage"),
        ("run --only gpu", "unknown check 'gpu'; did you mean 'gpus' or 'gpu_speed'?"),
        ("run --only p2", "unknown check 'p2'; did you mean 'p2p'?"),
        ("run --skip reduce", "unknown check 'reduce'; did you mean 'allreduce'?"),
        ("run --only driver", "unknown check 'driver'; did you mean 'software' or 'gpus'?"),
        ("run --only data_sharding", "unknown check 'data_sharding'; did you mean 'gradient_sync'?"),
        ("run --only zzz", "unknown check 'zzz'; run `ddp-doctor explain` to list all checks"),
        ("run --nproc_per_node x", "invalid --nproc-per-node 'x': expected auto, gpu, cpu or 1 to 1024"),
        (
            "run --nproc_per_node=gpu --backend=gloo",
            "--nproc-per-node gpu cannot be used with --backend gloo, which does not use GPUs; give a number of ranks",
        ),
        (
            "run --rdzv_endpoint=a:b",
            "invalid --rdzv-endpoint 'a:b': expected HOST or HOST:PORT with a port from 1 to 65535",
        ),
        (
            "run --node_rank 0 --master_addr=a --master_port 1 --join_timeout=9 --nnodes x",
            "invalid --nnodes 'x': expected 1 to 65536, or MIN:MAX",
        ),
        ("run --only 'p2p, gpu'", "unknown check 'gpu'; did you mean 'gpus' or 'gpu_speed'?"),
        ("prolog --skip host,gpu", "unknown check 'gpu'; did you mean 'gpus'?"),
        ("run --only p2p --skip host,p2p", "--only and --skip both list p2p; remove it from one of them"),
        ("run --nproc-per-node -3", "invalid --nproc-per-node '-3': expected auto, gpu, cpu or 1 to 1024"),
        ("run --nproc-per-node many", "invalid --nproc-per-node 'many': expected auto, gpu, cpu or 1 to 1024"),
        ("run --nnodes 0", "invalid --nnodes '0': expected 1 to 65536, or MIN:MAX"),
        ("run --model net", "invalid --model 'net': expected MODULE:FACTORY, for example train.models:make"),
        (
            "run --model train/net.py:make",
            "invalid --model 'train/net.py:make': expected a module name instead of a file; for this file, use",
        ),
        ("run --baseline /dev/null", "cannot use '/dev/null': it is empty"),
        (
            "run --only baseline",
            "baseline only compares other checks' results; use --baseline FILE instead of --only baseline",
        ),
        ("run --from-trace trace.json", "--from-trace 'trace.json' requires a model; add --model MODULE:FACTORY"),
        ("run --compile", "--compile requires a model; add --model MODULE:FACTORY"),
        ("run --only user_model", "--only user_model requires a model; add --model MODULE:FACTORY"),
        ("run --only compile", "--only compile requires a model; add --model MODULE:FACTORY"),
        ("prolog --model net:make", "unknown option '--model'; run `ddp-doctor prolog --help` for usage"),
        ("run --nnodes 2 --node-rank 1", "--node-rank requires --rdzv-endpoint HOST:PORT with the head node's address"),
        ("run --node-rank first", "invalid --node-rank 'first': expected an integer"),
        ("run --nnodes 2 --master-port 1", "--master-port requires --master-addr HOST with the host of node rank 0"),
        ("run --hosts ''", "invalid --hosts: '' is not a host name"),
        ("run --hosts a,a", "host 'a' is listed twice; list each host once, even if it has several slots"),
        (
            "run --hosts a,b --nnodes 3",
            "--nnodes asks for 3 nodes, but the host list has only 2; list more hosts, or omit --nnodes",
        ),
        ("run --hosts a,b --node-rank 0", "--hosts assigns the node ranks itself; omit --node-rank"),
        ("run --hosts a,b --hostfile hosts", "--hosts and --hostfile are mutually exclusive; give one of them"),
        (
            "run --hosts a,localhost",
            "other hosts cannot reach this host by the name localhost; list its host name instead",
        ),
        ("run --hosts -oProxyCommand=id", "invalid --hosts: '-oProxyCommand=id' is not a host name"),
        ("run --hostfile /nowhere/hosts", "cannot read '/nowhere/hosts': No such file or directory"),
        ("run --hostfile /dev/null", "'/dev/null' does not list any host; write one host per line"),
        ("run --topology /etc/hosts", "--topology requires --isolate"),
        ("run --isolate --topology /nowhere/t", "cannot read '/nowhere/t': No such file or directory"),
        (
            "run --isolate --topology -",
            "cannot read --topology from stdin (-), because each node reads the file itself; give a path",
        ),
        (
            "run --isolate --topology /dev/zero",
            "cannot read '/dev/zero': it is larger than 4 MiB, the size limit for this input",
        ),
        ("run --isolate --topology /dev/null", "'/dev/null' is not a valid topology: it is empty"),
        ("run --isolate --topology /bin/sh", "'/bin/sh' is not a valid topology: '\\x7fELF"),
        ("run --isolate", "--isolate requires several nodes, but this run has one; add --hosts or --nnodes"),
        (
            "run --isolate --nnodes 2 --skip isolation",
            "--isolate has no effect without the check isolation; remove isolation from --skip",
        ),
        (
            "run --isolate --nnodes 2 --only p2p",
            "--isolate has no effect without the check isolation; add isolation to --only",
        ),
        (
            "run --nnodes 2 --only isolation",
            "--only isolation requires --isolate; add --isolate, or remove isolation from --only",
        ),
        (
            "run --rdzv-endpoint host:",
            "invalid --rdzv-endpoint 'host:': expected HOST or HOST:PORT with a port from 1 to 65535",
        ),
        (
            "run --rdzv-endpoint localhost:70000",
            "invalid --rdzv-endpoint 'localhost:70000': expected HOST or HOST:PORT with a port from 1 to 65535",
        ),
        ("run --budget -1", "invalid --budget '-1': expected at least 1"),
        (
            "run --collective allgather",
            "unknown collective 'allgather' in --collective; did you mean 'all_gather' or 'gather'?",
        ),
        (
            "run --min-busbw gather:1M=1GB/s --skip collectives",
            "--min-busbw has no effect without the check collectives; remove collectives from --skip",
        ),
        ("run --sizes 8:1G:4", "--sizes, --iters and --warmup require --collective"),
        (
            "run --collective gather --sizes 1G:8",
            "invalid --sizes '1G:8': the first size is larger than the last; put the smaller one first",
        ),
        (
            "run --collective gather --sizes 8:1G:1",
            "invalid --sizes '8:1G:1': expected FROM:TO:FACTOR, for example 8:1G:4, with a factor of 2 or more",
        ),
        (
            "run --collective gather --sizes 10",
            "invalid size '10' in --sizes: expected a multiple of 4 bytes, the size of an fp32 element",
        ),
        (
            "run --collective gather --sizes many",
            "invalid size 'many' in --sizes: expected a number of bytes, for example 8, 512K or 1G (powers of 1024)",
        ),
        ("run --collective gather --iters 0", "invalid --iters '0': expected at least 1"),
        (
            "run --min-busbw gather:1M=180",
            (
                "invalid --min-busbw 'gather:1M=180': expected a rate with a unit, for example 180GB/s (1 GB is 10^9"
                " bytes)"
            ),
        ),
        ("run --join-timeout inf", "invalid --join-timeout inf: expected 1 to 86400 seconds (a day)"),
        ("run --repeat 0", "invalid --repeat '0': expected at least 1"),
        ("run --repeat -4", "invalid --repeat '-4': expected at least 1"),
        ("run --repeat 1000000", "invalid --repeat '1000000': expected 1 to 10000"),
        ("run --soak -1", "invalid --soak '-1': expected at least 0"),
        ("run --soak nan", "invalid --soak 'nan': expected at least 0"),
        ("run --soak 0", "invalid --soak 0: expected more than 0 and at most 1440 minutes (a day)"),
        ("run --soak inf", "invalid --soak inf: expected more than 0 and at most 1440 minutes (a day)"),
        ("run --soak 5 --skip repeats", "--soak has no effect without the check repeats; remove repeats from --skip"),
        ("run --repeat 5 --only p2p", "--repeat has no effect without the check repeats; add repeats to --only"),
        ("run --only repeats", "--only repeats requires --repeat; add --repeat, or remove repeats from --only"),
        ("run --mesh ''", "invalid --mesh '': expected NAME=RANKS for each axis, for example dp=2,shard=4"),
        ("run --mesh dp", "invalid --mesh 'dp': expected NAME=RANKS for each axis, for example dp=2,shard=4"),
        ("run --mesh dp=two", "invalid --mesh 'dp=two': expected NAME=RANKS for each axis, for example dp=2,shard=4"),
        ("run --mesh dp=2,shard=0", "invalid --mesh 'dp=2,shard=0': an axis has 0 ranks; give each at least 1"),
        (
            "run --mesh dp=2,tp=2,dp=2",
            "invalid --mesh 'dp=2,tp=2,dp=2': two axes have the same name; rename one of them",
        ),
        ("run --mesh dp=2 --only p2p", "--mesh has no effect without the check mesh; add mesh to --only"),
        (
            "run --min-busbw barrier:1M=1GB/s",
            "unknown collective 'barrier' in --min-busbw; expected all_reduce, broadcast",
        ),
        (
            "run --min-busbw gather",
            "invalid --min-busbw 'gather': expected COLLECTIVE:SIZE=RATE, for example all_reduce:1G=180GB/s",
        ),
        (
            "run --min-busbw gather:1M=1GB/s --min-busbw gather:1024K=2GB/s",
            "--min-busbw has two rates for gather with 1048576 bytes; remove one of them",
        ),
        ("run --level deep", "invalid --level 'deep': expected quick, standard or thorough"),
        ("replay /nowhere/recording.json", "cannot read '/nowhere/recording.json': No such file or directory"),
        ("replay /dev", "found no recording in '/dev'; run `ddp-doctor replay` to list the kept recordings"),
        ("env --from /nowhere/job.sh", "cannot read '/nowhere/job.sh': No such file or directory"),
        ("env --from /", "cannot read '/': Is a directory"),
        ("env --from /dev/zero", "cannot read '/dev/zero': it is larger than 8 MiB, the size limit for this input"),
        ("run --ignore XX", "unknown rule 'XX'; run `ddp-doctor explain` to list all rules"),
        ("run --bad-nodes /nowhere/bad", "cannot write '/nowhere/bad': No such file or directory"),
        ("run --bad-nodes - --good-nodes -", "only one output can go to stdout (-); give the other outputs a path"),
        (
            "run --bad-nodes bad --redact",
            "--redact cannot be used with --bad-nodes, which needs the real names; give one of them",
        ),
        ("run --json /nowhere/out.json", "cannot write '/nowhere/out.json': No such file or directory"),
        ("template pbs", "unknown template 'pbs'; expected slurm-prolog, slurm-healthcheck, slurm-gate"),
        (
            "template slurm-gate --require-gpus 8",
            "--require-gpus applies only to slurm-prolog and slurm-healthcheck; omit it for 'slurm-gate'",
        ),
        (
            "replay - --redact --json x --settings env:y",
            "--redact cannot be used with --settings env, which needs the real names; give one of them",
        ),
        ("prolog --unsure maybe", "invalid --unsure 'maybe': expected pass or fail"),
        ("nonsense", "unknown command 'nonsense'; run `ddp-doctor --help` for usage"),
        (
            "attach --seconds 0",
            (
                "invalid --seconds 0: expected 4 (the default) to 3600 seconds;"
                " a shorter time cannot show whether a job hangs"
            ),
        ),
        (
            "attach --seconds -3",
            (
                "invalid --seconds -3: expected 4 (the default) to 3600 seconds;"
                " a shorter time cannot show whether a job hangs"
            ),
        ),
        (
            "attach --seconds 1e9",
            (
                "invalid --seconds 1e+09: expected 4 (the default) to 3600 seconds;"
                " a shorter time cannot show whether a job hangs"
            ),
        ),
        (
            "attach --seconds nan",
            (
                "invalid --seconds nan: expected 4 (the default) to 3600 seconds;"
                " a shorter time cannot show whether a job hangs"
            ),
        ),
        ("watch --stuck-after inf -- true", "invalid --stuck-after inf: expected 10 to 86400 seconds (a day)"),
        (
            "run --hostfile train.py",
            "'train.py' is not a host file: 'import torch' in line 1 is neither a host name nor HOST slots=N",
        ),
        (
            "run --hostfile recording.json",
            "'recording.json' is a recording of ddp-doctor, but a host file is expected; run `ddp-doctor replay",
        ),
        ("run --json nowhere/", "cannot write 'nowhere/': the path has no file name; add a file name"),
        ("run --html ''", "cannot write '': the path has no file name; add a file name"),
        ("run --html .", "cannot write '.': it is a directory; add a file name"),
        (f"run --prometheus {'x' * 300}", "invalid --prometheus 'xxx"),
        ("logs /proc/self/mem", "cannot read '/proc/self/mem': it cannot be read: Input/output error"),
        ("run --record /dev/null/x", "cannot write '/dev/null/x': Not a directory"),
        ("run --json a --html ./a", "two outputs would write to 'a'; give each output its own path"),
        ("rrun", "unknown command 'rrun'; did you mean 'run'?"),
        ("explainn DD305", "unknown command 'explainn'; did you mean 'explain'?"),
        ("run --skp p2p", "unknown option '--skp'; did you mean '--skip'?"),
        ("run --level quik", "invalid --level 'quik': expected quick, standard or thorough; did you mean 'quick'?"),
        ("fit ''", "no model given; add MODULE:FACTORY, for example train.models:make, or hf:NAME"),
        ("lint", "missing argument FILE|DIR|-...; run `ddp-doctor lint --help` for usage"),
        ("fit", "missing argument MODULE:FACTORY|hf:NAME; run `ddp-doctor fit --help` for usage"),
        ("watch", "missing argument CMD...; run `ddp-doctor watch --help` for usage"),
        ("run extra", "unexpected argument 'extra'; run `ddp-doctor run --help` for usage"),
        ("run --json", "option '--json' requires an argument"),
        ("run --prove=1", "option '--prove' does not take a value"),
        ("run --budget nan", "invalid --budget 'nan': expected at least 1"),
        ("run --node-rank=", "invalid --node-rank '': expected an integer"),
        ("lint --select DDL9999 x.py", "unknown rule 'DDL9999'; run `ddp-doctor explain` to list all rules"),
        (
            "template slurm",
            "unknown template 'slurm'; did you mean 'slurm-prolog', 'slurm-healthcheck' or 'slurm-gate'?",
        ),
        ("completion tcsh", "no completion for shell 'tcsh': expected bash, zsh or fish"),
        ("fit m:f --strategy zero4", "invalid --strategy 'zero4': expected ddp, ddp-bucket-view, zero1, zero2, zero3"),
        ("fit m:f --precision fp16", "invalid --precision 'fp16': expected fp32, bf16 or amp; did you mean 'bf16'?"),
        ("compare x", "missing argument B; run `ddp-doctor compare --help` for usage"),
        ("topology --svg", "option '--svg' requires an argument"),
        ("attach --pid 0", "invalid --pid '0': expected at least 1"),
        ("attach --pid x --slurm-job 3", "invalid --pid 'x': expected an integer"),
        (
            "attach --pid 1 --hosts a",
            "--pid, --slurm-job, --hosts and --hostfile are mutually exclusive; give one of them",
        ),
        ("attach --slurm-job x", "'x' is not a SLURM job ID; use an ID such as 4711 or 4711_3"),
        ("logs", "no input given; name the job's output files, or give the job ID with --job"),
        ("trace", "missing argument PATH|-...; run `ddp-doctor trace --help` for usage"),
        ("fleet nowhere", "found no run in 'nowhere': cannot read 'nowhere': No such file or directory; write reports"),
        ("logs nowhere", "cannot read 'nowhere': there is no such file"),
        ("compare nowhere nowhere2", "cannot read 'nowhere': No such file or directory"),
        ("compare - -", "only one of the two inputs can be stdin (-); name a file for the other"),
        ("run --hosts 'a b'", "invalid --hosts: 'a b' is not a host name"),
        ("run --nnodes '\x1b[31m'", "invalid --nnodes '\\x1b[31m': expected 1 to 65536, or MIN:MAX"),
        ("run --only '\u202ep2p'", "unknown check '\\u202ep2p'; did you mean 'p2p'?"),
    ],
)
def test_wrong_request_is_one_sentence_and_keeps_nothing(asked, tmp_path, command, message):
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "recording.json").write_text(load("gpus/one-lost").model_dump_json())

    done = asked(*shlex.split(command), cwd=tmp_path, env={"XDG_STATE_HOME": str(tmp_path / "state")})

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ddp-doctor: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recording.json", "train.py"]


@pytest.mark.parametrize(
    ("command", "content", "message"),
    [
        ("replay", b"", NO_RECORDING + "it is empty; write one with --record FILE"),
        ("replay", b"{}", NO_RECORDING + "it has no schema_version or run_id"),
        ("replay", b"[1, 2]", NO_RECORDING + "it is not a JSON object"),
        ("replay", b"\x89PNG\xff\xfegarbage", NO_RECORDING + "it is not a text file"),
        (
            "replay",
            b'{"schema_version": "2.0", "readings": {"another": "shape"}}',
            "was written by a newer ddp-doctor (schema 2.0",
        ),
        ("replay", V1 + b'"readings": [{"check": 3}]}', NO_RECORDING + "readings.0.check has the invalid value '3'"),
        ("replay", V1 + b'"readings": [%s]}' % NO_CPUS, NO_RECORDING + "cpus has the invalid value '0'"),
        ("replay", b'{"schema_version": 2, "run_id": "x"}', NO_RECORDING + "schema_version has the invalid value '2'"),
        ("replay", b"[" * 100_000, NO_RECORDING + "its JSON is nested too deeply"),
        ("replay", b"print(1)\n", NO_RECORDING + "line 1 is not JSON"),
        ("replay", b"\x1f\x8b\x08\x00cut", NO_RECORDING + "it is a truncated or damaged gzip file"),
        ("replay", V1 + b'"duration_s": NaN}', NO_RECORDING + "NaN is not a finite number"),
        ("replay", V1 + b'"duration_s": 1e999}', NO_RECORDING + "1e999 is not a finite number"),
        ("replay", V1 + b'"n": -1' + b"0" * 5000 + b"}", NO_RECORDING + "-1000"),
        ("replay", b"report", NO_RECORDING + "it is a report of ddp-doctor"),
        ("replay", b'{"cells": [], "nbformat": 4}', NO_RECORDING + "it is a Jupyter notebook"),
        ("env --from", b"recording", A_RECORDING + "the output of `env`"),
        ("env --from", b"report", "is a report of ddp-doctor, but the output of `env`"),
        ("env --from", b"#!/usr/bin/env python3\n", "is a Python script, but the output of `env`"),
        ("run --isolate --topology", b"recording", A_RECORDING + "a file in SLURM topology format"),
        ("run --hostfile", b"recording", A_RECORDING + "a host file is expected; run `ddp-doctor replay x` to read it"),
        ("run --hostfile", b"node1\n<html>\n", "is not a host file: '<html>' is not a host name (line 2)"),
        (
            "run --hostfile",
            b"node1 slots=8\nset -e\n",
            "is not a host file: 'set -e' in line 2 is neither a host name nor HOST slots=N",
        ),
        ("run --hostfile", b"\x7fELF\x02\x01", "is not a host file: '\\x7fELF\\x02\\x01' is not a host name (line 1)"),
        ("topology", b"recording", A_RECORDING + "the output of `nvidia-smi topo -m` is expected"),
        ("lint", b"recording", A_RECORDING + "a Python script is expected; run `ddp-doctor replay x` to read it"),
        ("lint", b'{"cells": [], "nbformat": 4}', "is a Jupyter notebook, but a Python script is expected"),
        ("lint", b'{"lr": 0.1, "amp": true}', "is JSON, but a Python script is expected"),
    ],
)
def test_wrong_file_is_reported_with_the_expected_one(asked, tmp_path, command, content, message):
    given = {b"recording": load("gpus/one-lost"), b"report": judged("gpus/one-lost").report}
    (tmp_path / "x").write_bytes(given[content].model_dump_json().encode() if content in given else content)

    done = asked(*command.split(), "x", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ddp-doctor: 'x' {message}")
    assert len(done.stderr.splitlines()) == 1


def test_unreadable_topology_ends_with_the_error_instead_of_a_verdict(asked):
    done = asked("topology", "-", text="no matrix")

    assert done.returncode == 2
    assert done.stdout.splitlines()[-1].startswith("Error: nothing could be measured: no matrix")


@pytest.mark.parametrize("command", ["replay", "lint", "run --hostfile", "run --json"])
def test_long_path_is_shortened_in_the_middle(asked, command):
    done = asked(*command.split(), f"a{'b' * 300}c")

    assert done.returncode == 2
    assert len(done.stderr) < 220
    assert "'abbb" in done.stderr
    assert "bbbc': File name too long" in done.stderr


@pytest.mark.parametrize("text", ["\x1b[31mred", "\u202eabc", "a\nb", "\udcff", "\x00" * 200])
def test_quoted_value_is_safe_for_the_terminal(text: str):
    shown = quoted(text)

    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) < 130


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("p2", "did you mean 'p2p'?"),
        ("all-reduce", "did you mean 'all_reduce'?"),
        ("al", "did you mean 'all_reduce' or 'all_gather'?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_near_names_are_suggested(name: str, hint: str):
    assert did_you_mean(name, ["p2p", "all_reduce", "all_gather", "broadcast"]) == hint
