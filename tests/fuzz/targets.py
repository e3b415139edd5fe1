"""The parsers that take foreign text, each with seeds and with what it may raise.

A parser that is neither in TARGETS nor in NOT_FOREIGN fails tests/fuzz/test_targets.py. Everything else in
this folder (properties, junk of ten megabytes, the coverage-guided fuzzer) works on this list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile

from ddp_doctor.app.outcome import UsageError
from ddp_doctor.app.recordings import load_recording
from ddp_doctor.checks.node.gpus import accelerators
from ddp_doctor.checks.node.kernel import kernel_log
from ddp_doctor.checks.node.topology import live
from ddp_doctor.checks.node.topology.formats import (
    cpus,
    gpu_tables,
    nccl_xml,
    nvlink_table,
    topo_affinity,
    topo_matrix,
    topo_rows,
)
from ddp_doctor.checks.node.topology.pasted import read_pasted
from ddp_doctor.facts.node.gpus import Gpu, GpusFact, sysfs_bus_id
from ddp_doctor.features.jobs.reading import containers, endings, measured, prefix, ras, steps_said
from ddp_doctor.features.jobs.reading.assemble import Job
from ddp_doctor.features.jobs.reading.scan import ALL_WORDS, FileScan
from ddp_doctor.features.jobs.reading.words import pieces, search_for
from ddp_doctor.features.lint.linting import lint_bytes
from ddp_doctor.features.model.fit.options import memory_bytes, require_strategy
from ddp_doctor.features.trace.reading import rank
from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.model.context import CommandResult, Interface
from ddp_doctor.parse import (
    cgroup,
    file_kinds,
    flight_recorder,
    frames,
    hostlist,
    json_value,
    nccl_diagnostics,
    nccl_log,
    options,
    packet_filter,
    pci,
    plain_pickle,
    redact,
    slurm_topology,
    software,
    visible_devices,
    yaml_text,
)
from ddp_doctor.parse.nccl_log import digest
from ddp_doctor.parse.text import as_utf8, plain, plain_lines
from ddp_doctor.probing import host_limits, kernel, nccl_interface, setting_origins
from ddp_doctor.settings.launches import launches
from ddp_doctor.settings.nccl_conf import conf_lines
from ddp_doctor.settings.text import setting_text, shell_settings, shell_words
from ddp_doctor.views import failed_trials
from tests.features.jobs.logs.dumps import DUMPS, as_json, as_pickle, verdicts
from tests.features.lint.documents import OF_RULES
from tests.features.trace.written import steps, written
from tests.fuzz.machine_targets import MACHINE_TARGETS
from tests.fuzz.target import Target, direct, reader
from tests.recordings import path_of

TESTS = Path(__file__).parent.parent


def _samples(folder: str, end: str = "") -> tuple[str, ...]:
    paths = sorted((TESTS / "samples" / folder).iterdir())
    return tuple(path.read_text() for path in paths if path.name.endswith(end))


def _of_lines(parses: Callable[[Sequence[str]], Iterable[object]], *seeds: str) -> Target:
    """Return the target for a parser of plain lines, as they come from a paste."""
    refuses = (topo_rows.TopologyError,)
    return Target(parses, lambda text: list(parses(plain_lines(text))), seeds, refuses)


def _answer(text: str) -> CommandResult:
    return CommandResult(("helper",), "ended", 0, text)


def _env(names: tuple[str, ...], text: str) -> dict[str, str]:
    return dict(zip(names, text.split("\f"), strict=False))


_EIGHT = tuple(Gpu(index=at, uuid=f"GPU-{at:08x}", minor_number=at) for at in range(8))
_GRANTS = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", "NVIDIA_VISIBLE_DEVICES")
_TASKS = ("SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_ETH0 = Interface(name="eth0", addresses=("10.0.0.1/24", "fe80::1%eth0/64"))


def _visible(call: Callable[[dict[str, str]], object], text: str) -> object:
    return call(_env(_GRANTS, text))


def _tails(text: str) -> object:
    lines = text.split("\n")[:4096]  # a matrix has no more rows than its header has columns
    rows = [[(at, cell) for at, cell in enumerate(line.split("\t")) if cell] for line in lines]
    tails = [
        topo_affinity.Tail(f"GPU{at}", at, tuple(cell for _, cell in row), tuple(at for at, _ in row))
        for at, row in enumerate(rows)
    ]
    return topo_affinity.read_tails(tails, (topo_affinity.CPU, topo_affinity.NUMA, topo_affinity.GPU_NUMA))


def _legend(text: str) -> object:
    return topo_matrix.nic_names(["NIC0", "mlx5_0"], topo_matrix.read_legend(text.splitlines()))


def _load(text: str) -> object:
    with NamedTemporaryFile("w", encoding="utf-8", errors="surrogatepass", suffix=".json") as file:
        file.write(text)
        file.flush()
        return load_recording(Path(file.name))


_SEARCH = search_for(ALL_WORDS)


def _scanned(text: str) -> object:
    data = text.encode("utf-8", "surrogatepass")
    half = data.rfind(b"\n", 0, len(data) // 2) + 1
    scan = FileScan("job.out", 2026)
    for chunk in (data[:half], data[half:]):
        scan.feed(chunk, _SEARCH(chunk))
    scan.end()
    scan.ends.look((data[half:], data[:half]), scan.lines)
    return Job([scan]).fact(())


def _in_pieces(text: str) -> object:
    data = text.encode("utf-8", "surrogatepass").replace(b"\n", b" ")
    return list(pieces(data, 0, len(data), _SEARCH(data)))


def _halves(text: str) -> tuple[bytes, bytes]:
    data = text.encode("utf-8", "surrogatepass")
    return data[: len(data) // 2], data[len(data) // 2 :]


_TRACES = written(steps(2)), json.dumps(steps(2))
_TOPOLOGIES = _samples("topology")
_NCCL_FILES = tuple(text for text in _TOPOLOGIES if "<system" in text)
_LEGEND = "NIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: MA ID\n"
_TAILS = "0-31,64-95\t0\t\tN/A\n\t\t\t\tN/A", "0-47,96-143\t0\t\tN/A\n0-47,96-1430\tN/A"
_CGROUP_2 = "0::/user.slice\f35 25 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\f200000 100000\f1000\f"
_CGROUP_1 = (
    "4:memory:/docker/0c\n1:cpu,cpuacct:/docker/0c\f34 31 0:31 /docker/0c /sys/fs/cgroup/memory ro - cgroup c"
    " rw,memory\f-1\f9223372036854771712\ftotal_inactive_file 4096"
)
_LDD = (
    "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibnccl.so.2 => /v/a (b)/libnccl.so.2 (0x00007f2a3c000000)\n"
    "\tlibnccl.so.2 => not found\n\t/opt/nccl/lib/libnccl.so.2 (0x00007f2a3c000000)\n"
)
_CONF = "# c\nNCCL_SOCKET_IFNAME=eth0\nexport NCCL_DEBUG=INFO\n NCCL_IB_HCA = mlx5_0\nNCCL_P2P_LEVEL\nTOKEN=x\n"
_CACHE = "1214 libs found in cache `/etc/ld.so.cache'\n\tlibnccl-net.so (libc6,x86-64) => /usr/lib/libnccl-net.so\n"
_PATHS = ("LD_PRELOAD", "LD_LIBRARY_PATH")
_JOB_SCRIPT = (
    "#!/bin/bash\n#SBATCH --export=ALL,NCCL_DEBUG=WARN\nexport NCCL_IB_HCA=\"mlx5_0\" NCCL_X='a b' # c\n"
    'NCCL_ALGO=Ring\nunset NCCL_X\nexport MASTER_ADDR=$(scontrol show hostnames "$L" | head -n 1)\n'
    'docker run -e NCCL_P2P_DISABLE=1 \\\n  bash -c "export NCCL_ALGO=${A:-Ring}; torchrun x.py"\n'
)
_SETTINGS = (
    _JOB_SCRIPT,
    "PATH=/bin\nHOME=/root\nPWD=/\nNCCL_DEBUG=INFO\nRANK=0\n",
    'env:\n- name: NCCL_DEBUG\n  value: "INFO"\n- {name: NCCL_ALGO, value: Ring}\nNCCL_PROTO: LL # c\n',
)
_LAUNCHES = (
    """#SBATCH -N 4
H=$(scontrol show hostnames | head -n 1 || echo localhost); A=(--nnodes=${N:-4} "--x=$((1 + $R))")
for h in {a..c} b; do ssh $h 'torchrun "${A[@]}" x' & done
f() { if [ $1 ]; then case $2 in a*) B=${C%%,*} ;; esac; fi; }; mapfile -t N < <(scontrol show hostnames); ((i++))
cat > r.sh <<'E'
$(hostname)
E
srun bash r.sh
""",
    """kind: PyTorchJob
spec: &s
  pytorchReplicaSpecs:
    Worker: {replicas: 3, template: {spec: {containers: [{command: [sh, -c, "torchrun x"]}]}}}
---
a: *s
b: |
  x
- c: >-
    d
""",
)
_NCCL_COMPLAINTS = (
    "n:5:8 [0] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-x (size 9637888)\n"
    "n:5:8 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
    "n:5:8 [0] transport/net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4> with status=12 opcode=0\n"
)
_JOB_OUTPUT = (
    '[default1]:[rank9]: Traceback (most recent call last):\n[default1]:[rank9]:   File "a.py", line 1, in f\n'
    "[default1]:[rank9]: ValueError: x\n  time      : 2026-03-01\n  rank      : 9 (local_rank: 1)\n"
    "  exitcode  : -9 (pid: 123)\n  traceback : x\n1% \r2%\rn1:8:9 [1] NCCL INFO comm 0x1 rank 9 nranks 16 cudaDev 1\n"
    '{"log":"(A pid=3, ip=10.0.0.2) x [repeated 3x across cluster]\\n","time":"2026-03-01T01:02:03.5+01:00"}\n'
    "noticed that process rank 3 with PID 12 on node n1 exited on signal 9 (Killed).\n"
    "srun: error: n1: tasks 0-3,7: Exited with exit code 1\n"
)
_NCCL_LOG = (
    "NCCL version 2.27.5+cuda12.8\n"
    "w:1:2 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS.\n"
    "w:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE [1]mlx5_bond_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
    "w:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [receive] via NET/IB/3(2)/GDRDMA(PCI)/Shared\n"
    "w:1:2 [0] NCCL INFO Ring 00 : 0[0] -> 1[1] via P2P/direct pointer\n"
)
_NVML = (
    '{"error": null, "call": "", "gpu": null, "text": "", "elapsed_s": 0.06, "driver_version": "550.90.07",'
    ' "gpus": [{"index": 0, "uuid": "GPU-89", "bus_id": "00000000:1B:00.0", "mig_uuids": ["MIG-1"]}]}'
)
_DRIVER = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@host)\n",
)
_NVML_TOPOLOGY = (
    '{"error": null, "gpus": [{"index": 0, "bus_id": "00000000:1B:00.0", "cpu_affinity": "0-31", "nvlinks": [{"index":'
    ' 0, "active": true, "remote": "gpu", "remote_bus_id": "00000000:43:00.0"}]}, {"index": 2, "bus_id":'
    ' "00000000:43:00.0"}], "ancestors": [[0, 2, 20]], "p2p": {"read": [[0, 2, 0], [2, 0, 3]]}}'
)
_KERNEL_LOGS = (
    (
        "[74889.644138] NVRM: Xid (PCI:0000:2b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        "[Sat Oct 12 18:35:32 2024] NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=python3, Ch 0000000a\n"
        "<4>[  95.1] NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)\n"
    ),
    (
        "1714567890.120 node7 kernel: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC\n"
        "Dec  2 11:49:53 n4 kernel: [  885.242168] NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)\n"
    ),
    (
        "[74889.5] pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer\n"
        "[9.1] mlx5_core 0000:17:00.0: poll_health:739:(pid 0): device's health compromised - reached miss count\n"
        "[601.0] INFO: task nvidia-smi:5403 blocked for more than 120 seconds.\n"
    ),
)
_RECORDINGS = tuple(
    path_of(situation).read_text()
    for situation in ("gpus/one-lost", "topology/healthy-two-socket-pair", "roll_call/endpoint-refused")
)

#: A script for most rules: local functions, a class, branches on the rank, loops.
_SCRIPT = "\n".join(sample.text for sample in OF_RULES if sample.rule.startswith("DDL10") and not sample.silent)

_NFT = """{"nftables": [
{"chain": {"family": "inet", "table": "filter", "name": "input", "type": "filter", "hook": "input", "policy": "drop"}},
{"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": [
{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}},
{"accept": null}]}}]}"""


def _of_bytes(text: str) -> bytes:
    return text.encode("latin-1", "replace")


_RAS = (
    (
        "Job summary\n===========\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    0         1         2         4         8         8   RUNNING  MISMATCH\n\n"
        "DEAD\n  1 job process is considered dead\n  Process 34 on node 10.0.0.1 managing GPU 5\n\n"
        "#0-0 (78db921d1c117b4a) INCOMPLETE\n  Rank 5 -- GPU 5 managed by process 34 on node 10.0.0.1\n\n"
        "#0-0 (78db921d1c117b4a) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        "  7 ranks have launched up to operation 64\n"
        "  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 16 on node n1\n"
    ),
    (
        '{"communicators": [{"size": 2, "missing_ranks": [{"rank": 1, "nvml_dev": 1\n "status": {}}],'
        ' "ranks": [{"rank": 0, "host": "n1", "pid": 1, "cuda_dev": 0, "collective_counts": {"AllReduce": 9}}]}]}'
    ),
)
_NCCL_TESTS = (
    '{"args": ["all_reduce_perf"], "config": {"devices": [{}, {}]}, "results": [{"size": 8, "count": 2,'
    ' "type": "float", "redop": "sum", "out_of_place": {"time": 5.1, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0}}],'
    ' "out_of_bounds": {"count": 0}}'
)
_INSPECTOR = (
    '{"header": {"rank": 1, "n_ranks": 2}, "coll_perf": {"coll": "AllReduce", "coll_msg_size_bytes": 1024,'
    ' "coll_exec_time_us": 61, "coll_algobw_gbs": 2.5, "coll_busbw_gbs": 2.5}}\n'
) * 2

#: Dumps of one rank: as JSON, and as torch's and as Python's own pickles.
_FLIGHT_DUMPS = (
    as_json(DUMPS["crossed-groups"][0]).decode(),
    *(as_pickle(DUMPS["sub-group"][0], protocol).decode("latin-1") for protocol in (0, 2, 4)),
)

TARGETS: tuple[Target, ...] = (
    Target(rank.read_trace, lambda text: rank.read_trace("rank0.json", _halves(text)), _TRACES, (rank.NotATrace,)),
    Target(
        plain_pickle.plain_data,
        lambda text: plain_pickle.plain_data(_of_bytes(text)),
        _FLIGHT_DUMPS[1:],
        (plain_pickle.NotPlainData,),
    ),
    Target(flight_recorder.is_dump, lambda text: flight_recorder.is_dump(_of_bytes(text), text), _FLIGHT_DUMPS),
    Target(
        flight_recorder.read_dump,
        lambda text: verdicts([flight_recorder.read_dump(_of_bytes(text), "rank1.json", 1.0)]),
        _FLIGHT_DUMPS,
    ),
    Target(
        flight_recorder.recorded_calls,
        lambda text: list(flight_recorder.recorded_calls(_of_bytes(text), 1.0)),
        _FLIGHT_DUMPS,
        (ValueError, RecursionError),
    ),
    Target(
        flight_recorder.entry_of,
        lambda text: list(map(flight_recorder.entry_of, json.loads(text)["entries"])),
        _FLIGHT_DUMPS[:1],
        (ValueError, LookupError, TypeError, AttributeError, RecursionError),  # json's own exceptions as well
    ),
    *MACHINE_TARGETS,
    Target(lint_bytes, lambda text: lint_bytes("a.py", text.encode("utf-8", "surrogatepass")), (_SCRIPT,)),
    direct(read_pasted, *_TOPOLOGIES),
    _of_lines(nvlink_table.find_nvlinks, *_samples("topology", "nvlink-states.txt")),
    _of_lines(gpu_tables.find_p2p_tables, *_samples("topology", "p2p-capabilities.txt")),
    _of_lines(gpu_tables.find_rocm_topologies, *_samples("topology", "rocm-smi-showtopo.txt")),
    _of_lines(topo_matrix.find_matrices, *_TOPOLOGIES),
    direct(topo_matrix.refuse_binary, "\x00G\x00P\x00U", "GPU0", refuses=topo_rows.TopologyError),
    direct(topo_matrix.why_none, *_TOPOLOGIES),
    direct(topo_rows.bare, "| GPU0 | X |"),
    direct(topo_rows.columns_of, "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity", "GPU0GPU1NIC0"),
    direct(topo_rows.shape_of, "2026-01-15 10:00:00 > "),
    Target(
        pci.acs_control,
        lambda text: pci.acs_control(text.encode("utf-8", "surrogatepass")),
        ("\0" * 0x100 + "\x0d\0\x01\0\x5f\0\x1d\0" + "\0" * 64,),
    ),
    Target(pci.is_cut_off, lambda text: pci.is_cut_off(text.encode("utf-8", "surrogatepass")), ("\0",)),
    direct(cpus.cpu_ranges, "0-31,64-95", "0"),
    Target(cpus.share_a_cpu, lambda text: cpus.share_a_cpu(*text.partition("\f")[::2]), ("0-3,8\f5,7-9",)),
    direct(kernel_log.parse_kernel_log, *_KERNEL_LOGS),
    direct(kernel.driver, *_DRIVER),
    Target(ras.is_ras, lambda text: ras.is_ras(_of_bytes(text)), _RAS),
    Target(measured.is_nccl_tests, lambda text: measured.is_nccl_tests(_of_bytes(text)), (_NCCL_TESTS,)),
    Target(measured.is_inspector, lambda text: measured.is_inspector(_of_bytes(text)), (_INSPECTOR,)),
    direct(ras.launches, *_RAS),
    direct(
        steps_said.numbers_of_steps, "Epoch 3, global_step=400 loss 2.3\neval step 4\n 12%|#  | 120/1000 [00:10<01:13]"
    ),
    Target(ras.stand_still, lambda text: ras.stand_still(text, text), _RAS),
    Target(ras.text_of_ras, lambda text: ras.text_of_ras(_of_bytes(text)), _RAS, (ValueError,)),
    Target(
        measured.text_of_nccl_tests,
        lambda text: measured.text_of_nccl_tests(_of_bytes(text)),
        (_NCCL_TESTS,),
        (ValueError,),
    ),
    Target(measured.inspected, lambda text: list(measured.inspected(_of_bytes(text))), (_INSPECTOR,), (ValueError,)),
    Target(digest, lambda text: digest(text.splitlines()), (_NCCL_LOG,)),
    direct(failed_trials.complaints, _NCCL_COMPLAINTS),
    direct(
        failed_trials.used_elsewhere, "ProcessGroupNCCL is bound to device cuda:0 but an operation was issued on cuda:1"
    ),
    direct(nccl_diagnostics.parse_nccl_diagnostics, *_samples("nccl_diagnostics")),
    direct(nccl_diagnostics.still_printing, *_samples("nccl_diagnostics")),
    direct(nccl_log.settings_in, _NCCL_LOG),
    direct(nccl_log.version_in, _NCCL_LOG),
    direct(live.parse_nvml_topology, _NVML_TOPOLOGY, refuses=ValueError),
    Target(
        live.live_matrix,
        lambda text: live.live_matrix(live.parse_nvml_topology(text), live.Bus({}, {})),
        (_NVML_TOPOLOGY,),
        (ValueError, LookupError),
    ),
    Target(
        nccl_xml.find_nccl_topologies,
        lambda text: list(nccl_xml.find_nccl_topologies(text.splitlines())),
        _NCCL_FILES,
        (topo_rows.TopologyError,),
    ),
    direct(options.require_factory, "train.models:make", "train/models.py:make", refuses=ValueError),
    direct(setting_text.read_setting_text, *_SETTINGS, refuses=setting_text.NoSettings),
    Target(file_kinds.is_launch, lambda text: file_kinds.is_launch(text, "job"), (*_SETTINGS, *_LAUNCHES)),
    Target(launches.launches_of, lambda text: launches.launches_of(text.split("\n")), (*_SETTINGS, *_LAUNCHES)),
    Target(yaml_text.read_yaml, lambda text: yaml_text.read_yaml(text.split("\n")), _LAUNCHES),
    direct(shell_settings.is_kept, "echo NCCL_DEBUG=INFO >> ~/.bashrc", "make | tee log"),
    Target(shell_words.commands, lambda text: list(shell_words.commands(text)), _SETTINGS),
    Target(shell_words.commands_and_signs, lambda text: list(shell_words.commands_and_signs(text)), _SETTINGS),
    Target(setting_origins.file_settings, lambda text: list(setting_origins.file_settings(text)), _SETTINGS),
    direct(setting_origins.stat_of, "4711 (a) b) S 4700 1 1 "),
    direct(setting_origins.environ_of, "PATH=/bin\0NCCL_DEBUG=INFO\0"),
    direct(nccl_xml.parse_xml, *_NCCL_FILES, refuses=topo_rows.TopologyError),
    direct(pci.is_bus_id, "0000:1b:00.0"),
    direct(pci.read_path, "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:1b:00.0"),
    Target(load_recording, _load, _RECORDINGS, (UsageError,)),
    direct(topo_matrix.parse_matrices, *_TOPOLOGIES, refuses=topo_rows.TopologyError),
    direct(topo_matrix.parse_matrix, *_TOPOLOGIES, refuses=topo_rows.TopologyError),
    Target(
        topo_rows.read_blocks,
        lambda text: list(topo_rows.read_blocks(text.splitlines())),
        _TOPOLOGIES,
        (topo_rows.TopologyError,),
    ),
    direct(topo_rows.split_codes, "NV18", "XNODESYSPIX", "NV4NV4PHB0-15"),
    direct(topo_affinity.in_ascii, "0-31 \uff10"),
    Target(topo_affinity.read_tails, _tails, _TAILS),
    Target(topo_matrix.read_legend, lambda text: topo_matrix.read_legend(text.splitlines()), (_LEGEND,)),
    Target(topo_matrix.nic_names, _legend, (_LEGEND,)),
    direct(plain_lines, "\x1b[4m\tGPU0\x1b[0m\r\n> a\b\bb", "\x1b]8;;x\x1b\\\r\n"),
    direct(nccl_log.parse_nccl_log, _NCCL_LOG),
    direct(redact.masked, "etcd://user:secret@host HF_TOKEN=abcdefgh --password hunter22"),
    direct(plain, "\x1b[36m(A pid=1)\x1b[0m a\u202eb\x07"),
    direct(prefix.of_path, "/l/none_x/attempt_0/3/stderr.log", "rank_3.log"),
    direct(prefix.attempt_of_path, "/l/none_x/attempt_1/3/stderr.log"),
    Target(
        endings.before_time_out,
        lambda text: endings.before_time_out(text.encode("utf-8", "surrogatepass"), len(text)),
        ("Map:  61%|###   | 7340011/12000000 [1:10:01<18:51, 4081.20 examples/s]",),
    ),
    Target(
        endings.since_complete,
        lambda text: endings.since_complete(text.encode("utf-8", "surrogatepass"), len(text)),
        ("n:1:2 [0] NCCL INFO comm 0x1 - Init COMPLETE\nstep 1\n",),
    ),
    Target(
        containers.document,
        lambda text: containers.document(text.encode("utf-8", "surrogatepass")),
        ("import torch\n", '{\n"a": 1}', "# A\n\n# B\n[c](d)\n"),
    ),
    Target(pieces, _in_pieces, ("10%\rNCCL WARN x\rTraceback",)),
    Target(prefix.clean, lambda text: prefix.clean(text.encode("utf-8", "surrogatepass")), ("\x1b[36ma",)),
    Target(endings.endings_in, lambda text: list(endings.endings_in(text)), tuple(_JOB_OUTPUT.splitlines()[-2:])),
    direct(endings.ending_of_mpirun, "Process name: [[1,1],3]\n  Exit code:    1"),
    Target(
        endings.ending_of_summary,
        lambda text: endings.ending_of_summary(_env(("rank", "exitcode", "host"), text)),
        ("3 (local_rank: 1)\f-9 (pid: 12)\fnode1",),
    ),
    Target(
        file_kinds.text_of_error_file,
        lambda text: file_kinds.text_of_error_file(text.encode("utf-8", "surrogatepass")),
        ('{"message": {"message": "E: x", "extraInfo": {"py_callstack": "T", "timestamp": "17"}}}',),
        (ValueError,),
    ),
    Target(search_for, _scanned, (_JOB_OUTPUT,)),
    direct(accelerators.parse_nvml, _NVML, refuses=ValueError),
    direct(sysfs_bus_id, "00000000:1B:00.0", "0000:61:00.0"),
    direct(hostlist.expand, "node[1-4,7],gpu-[01-03]-ib", "a[1-2]b[3-4]", refuses=ValueError),
    direct(hostlist.expand_open_mpi, "node[2:3,1-2],login@0(4)", refuses=ValueError),
    direct(hostlist.read_host_file, "node1 slots=8 # c\nadmin@node2\nnode3:8\n", refuses=ValueError),
    direct(
        slurm_topology.read_topology,
        "SwitchName=s0 Nodes=dev[0-5]\nSwitchName=s3 Switches=s0\n",
        "- topology: a\n  tree:\n    switches:\n    - switch: s\n      nodes: n[1-2]\n",
        "rack1: node[1-4],node7\n",
        refuses=ValueError,
    ),
    direct(options.nnodes, "4", "2:4", refuses=ValueError),
    direct(options.endpoint, "node0:29400", "[fd00::1]:29400", refuses=ValueError),
    direct(options.mesh, "dp=2,shard=4", "pp=2, dp=1,tp=8", refuses=ValueError),
    direct(options.sizes, "8:1G:4", "512K", refuses=ValueError),
    Target(options.size, lambda text: options.size(text, "--sizes"), ("8", "512KiB"), (ValueError,)),
    direct(memory_bytes, "80GiB", "39.5 G", refuses=ValueError),
    direct(require_strategy, "zero3", "fsdp", refuses=ValueError),
    direct(options.is_configuration, "hf:llama,num_hidden_layers=16"),
    Target(options.floor, lambda text: options.floor(text, TABLE), ("all_reduce:1G=180GB/s",), (ValueError,)),
    Target(
        options.require_collective,
        lambda text: options.require_collective(text, TABLE, "--collective"),
        ("all_gather",),
        (ValueError,),
    ),
    Target(cgroup.limits, lambda text: cgroup.limits(reader(text)), (_CGROUP_2, _CGROUP_1)),
    Target(
        cgroup.throttled_s,
        lambda text: cgroup.throttled_s(reader(text)),
        (_CGROUP_2, f"{_CGROUP_1}throttled_time 12\f"),
    ),
    Target(
        host_limits.memory_bytes,
        lambda text: host_limits.memory_bytes(text, "MemAvailable"),
        ("MemTotal: 24 kB\nMemAvailable:   23492432 kB\n",),
    ),
    direct(host_limits.load_1min, "3.25 1.11 0.99 2/138 16370"),
    direct(host_limits.cpu_time, "4711 (a) b (c) R 1 1 1 0 -1 4194304 1 0 0 0 250 17 0 0 20 0 1 0 5 6 7\n"),
    direct(host_limits.online_cpus, "cpu  1 2\ncpu0 3357 0 4313\ncpu1 1 2\n"),
    Target(
        host_limits.memlock_is_ignored,
        lambda text: host_limits.memlock_is_ignored(reader(text)),
        ("CapEff:\t000001ffffffffff\n\f         0          0 4294967295",),
    ),
    direct(host_limits.omp_threads, "4", " 4,2", "0"),
    Target(host_limits.several_tasks, lambda text: host_limits.several_tasks(_env(_TASKS, text)), ("8(x2),4",)),
    Target(
        host_limits.rdma_unused_by,
        lambda text: host_limits.rdma_unused_by(_env(("NCCL_IB_DISABLE", "NCCL_NET"), text)),
        ("1\fSocket", "true"),
    ),
    Target(
        nccl_interface.library_choice,
        lambda text: nccl_interface.library_choice(_answer(text), (_ETH0,)),
        ('{"version_code": 22907, "address": "10.0.0.1"}', '{"status": 5, "error": "no socket interface found"}'),
    ),
    direct(conf_lines, _CONF),
    direct(json_value.json_value, _NCCL_TESTS, '["\\ud83d", NaN]', refuses=json_value.NotJson),
    direct(json_value.json_object, _NCCL_TESTS, refuses=json_value.NotJson),
    Target(
        json_value.text_in,
        lambda text: json_value.text_in(_of_bytes(text)),
        (_NCCL_TESTS, "\xff\xfe{\0}\0"),
        (json_value.NotJson,),
    ),
    direct(file_kinds.file_kind, '{"readings": [], "run_id": ""}', "#!/bin/sh\n", '{"cells": 1, "nbformat": 4}'),
    Target(packet_filter.closed_in_nft, lambda text: packet_filter.closed_in_nft(text, 29400, ("inet", "ip")), (_NFT,)),
    Target(
        packet_filter.closed_in_iptables,
        lambda text: packet_filter.closed_in_iptables(text, 29400),
        ("*filter\n:INPUT DROP [0:0]\n:F2B - [0:0]\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n-A INPUT -j F2B\n",),
    ),
    direct(software.cached, _CACHE),
    direct(software.missing_libraries, _LDD, "\tlibfabric.so.1 => not found\n"),
    Target(
        software.brought_by,
        lambda text: software.brought_by(_env(_PATHS, text), "/opt/nccl/lib/libnccl.so.2"),
        ("/opt/nccl/lib/libnccl.so.2 /x.so\f/usr/lib:/opt/nccl/lib", ":\f;"),
    ),
    Target(
        software.entries,
        lambda text: software.entries(_env(_PATHS, text), "LD_LIBRARY_PATH"),
        ("\f/usr/lib:/opt/nccl/lib",),
    ),
    Target(
        software.pinned_nccl,
        lambda text: software.pinned_nccl(text.splitlines()),
        ("nvidia-nccl-cu12==2.26.2; platform_system == 'Linux'", "nvidia-nccl-cu12 (==2.18.1) ; x"),
    ),
    direct(software.driver_version, *_DRIVER),
    Target(software.linked_library, lambda text: software.linked_library(text, "libnccl.so.2"), (_LDD,)),
    Target(
        software.nccl_answer,
        lambda text: software.nccl_answer(_answer(text)),
        ('{"version_code": 22907}', '{"error": "x"}', "chatter\n{}"),
    ),
    direct(software.torch_folder, 'chatter\n{"torch_folder": "/v/lib/torch"}\n', "{}"),
    direct(software.last_line, "chatter\n{}\n"),
    Target(
        software.gpus_hidden_by,
        lambda text: software.gpus_hidden_by(_env(_GRANTS, text)),
        ("\f0,1", "-1", "NoDevFiles"),
    ),
    Target(
        redact.is_withheld,
        lambda text: redact.is_withheld(*(text.partition("=")[::2])),
        ("PET_RDZV_ENDPOINT=etcd://user:secret@host:2379", "TOKEN=abc", "N=ghp_16C7e42F292c6912E7710c838347Ae17"),
    ),
    direct(redact.looks_like_credential, "export TOKEN=abc", "http://user:secret@proxy:3128/x"),
    direct(
        frames.fatal_stack,
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007f4e3905cb80 [python] (most recent call first):\n"
        '  File "/home/me/net.py", line 7 in make\n',
    ),
    Target(
        frames.called,
        lambda text: frames.called(text.split("\n")),
        ("/opt/ddp_doctor/features/model/user_model/probing/user_code.py:9 in forward\n/home/me/net.py:31 in forward",),
    ),
    Target(
        redact.open_and_withheld,
        lambda text: redact.open_and_withheld(dict(line.partition("=")[::2] for line in text.split("\n"))),
        ("A=etcd://user:secret@host\nTOKEN=abc\nB=\udcff",),
    ),
    Target(
        redact.shielded,
        lambda text: redact.shielded(dict(line.partition("=")[::2] for line in text.split("\n")), ("A", "TOKEN")),
        ("A=etcd://user:secret@host\nTOKEN=abc\nB=\udcff",),
    ),
    direct(as_utf8, "eth\udcff", "tr\xe4ning.py"),
    Target(
        visible_devices.select_devices,
        partial(_visible, lambda env: visible_devices.select_devices(_EIGHT, env)),
        ("0,1,2", "GPU-00000001,GPU-00000002", "MIG-GPU-1/2/0", "-1", "0-3"),
    ),
    Target(
        visible_devices.visible_gpus,
        partial(_visible, lambda env: visible_devices.visible_gpus(GpusFact(gpus=_EIGHT), env)),
        ("0,1,2", "NoDevFiles"),
    ),
    Target(
        visible_devices.job_view,
        partial(_visible, lambda env: visible_devices.job_view(_EIGHT, env, in_container=True)),
        ("0,1\f0-3\f4\fGPU-1,GPU-2",),
    ),
    Target(visible_devices.hides_all, partial(_visible, visible_devices.hides_all), ("", "-1", "0,1")),
    Target(
        visible_devices.granted_gpus,
        partial(_visible, lambda env: visible_devices.granted_gpus(env, in_container=True)),
        ("0,1\f0-3\f4\fGPU-1,GPU-2",),
    ),
    Target(
        visible_devices.job_gpus, partial(_visible, lambda env: visible_devices.job_gpus(_EIGHT, env)), ("0,1\f0-3",)
    ),
)

_OWN = "takes facts or settings that the doctor itself made, no text"
_SHOWN = "makes text for people"
#: Public functions of ddp_doctor.parse that no foreign text reaches, and why.
NOT_FOREIGN: Mapping[str, str] = {
    "flight_recorder.still_open": "takes facts",
    "file_kinds.is_recording": "looks for words in bytes",
    "kernel_files.port_range": "reads two numbers of /proc/sys",
    "file_kinds.is_error_file": "looks for words in bytes",
    "live.ask_nvidia_smi": "hands text to topo_matrix.parse_matrix",
    "live.ask_nvml": "hands text to live.parse_nvml_topology",
    "live.bonded": _OWN,
    "pci.link_code": _OWN,
    "topo_matrix.asymmetries": _OWN,
    "host_gpus.device_nodes": "filters names of files; opens none",
    "rdma.hca_names": "sorts names of files; opens none",
    "gpu_tables.gpu_header": "the readers of tables in the same module call it",
    "gpu_tables.read_table": "the readers of tables in the same module call it",
    "pci.acs_words": "takes a number",
    "topo_matrix.fill_gaps": "topo_matrix.find_matrices calls it",
    "topo_rows.label_of": "topo_rows.read_blocks calls it",
    "topo_rows.line_behind": "topo_rows.read_blocks calls it",
    "topo_rows.refuse_odd_columns": "topo_rows.read_blocks calls it",
    "frames.is_of_the_job": "frames.called calls it",
    "frames.of_the_job": "frames.called calls it",
    "frames.is_of_the_users_files": "two patterns of frames.of_the_job",
    "frames.listed": "frames.fatal_stack calls it",
    "file_kinds.json_kind": "file_kinds.file_kind calls it",
    "host_limits.loopback_problem": "takes addresses that the kernel gave",
    "host_limits.reader": "hands text on",
    "host_limits.busiest": "adds up what host_limits.cpu_time lets pass",
    "accelerators.hidden": "accelerators.unsupported reads the same",
    "accelerators.hiding": "looks for a few words in a variable",
    "kernel_files.text_of": "hands text on",
    "kernel_files.names_in": "hands names on",
    "kernel_files.target_of": "hands text on",
    "kernel_files.end_of": "takes what stands behind the last slash",
    "host_limits.shared_memory": "asks for two numbers",
    "host_limits.shared_memory_device": "asks for a number",
    "nccl_conf.set_by_files": _OWN,
    "nccl_conf.files_read": _OWN,
    "nccl_conf.read_by": _OWN,
    "software.nccl_release": "takes a number",
    "options.written": _SHOWN,
}
