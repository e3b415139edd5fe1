"""``ddp-doctor explain`` by code, by how codes begin, by variable and by the text of an error."""

import re
from pathlib import Path

import pytest

from ddp_doctor.cli.explain import explain
from ddp_doctor.cli.given import ignored
from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.features.jobs.table import JOB_CAUSES, SIGNS
from ddp_doctor.features.jobs.table.signs import Sign
from ddp_doctor.features.lint.rules import RULES as LINT_RULES
from ddp_doctor.features.trace.table import PARTS
from ddp_doctor.knowledge.ddp.strategies import BY_NAME
from ddp_doctor.knowledge.endings import EXIT_CODES, SIGNALS
from ddp_doctor.knowledge.topology.link_codes import LINK_CODES, NCCL_PATHS, P2P_STATUSES
from ddp_doctor.model.choices import CheckStatus, Confidence, Severity, UsageError, Verdict
from ddp_doctor.settings.table import variables

ROOT = Path(__file__).parents[2]
RULES = {rule.code: rule for rule in (*all_rules(), *LINT_RULES)}


@pytest.mark.parametrize(
    ("text", "first", "also"),
    [
        ("dd412", "DD412 p2p-over-pcie-unproved (info: worth knowing)\n", "`ddp-doctor run` tries it."),
        ("ddl104", "DDL104 gpu-hard-coded (error: the job does not start, or fails)\n", "\nWhat it finds\n"),
        ("variable-misspelled", "DD111 variable-misspelled (warning: a risk)\n", "References\n"),
        ("DD722", "DD722 powersgd-gradient-wrong is retired. ", "`run --model` compares"),
        ("DD23", "DD230 ", "\nDD239 "),
        ("NCCL_IB_DISABLE", "NCCL_IB_DISABLE (read by nccl, from 2.3.5)\n", "\n    DD436 "),
        ("NCCL_IB_DISABLE=1", "NCCL_IB_DISABLE (read by nccl", "ranks on TCP sockets cannot connect"),
        ("nccl_debug", "NCCL_DEBUG (read by nccl", "Values: VERSION, WARN"),
        ("NCCL_NET_PL", "NCCL_NET_PLUGIN: ", "\nNCCL_NET_PLUGIN_REF_COUNT: "),
        (
            "NCCL_CONNECT_TIMEOUT",
            "NCCL_CONNECT_TIMEOUT: NCCL, torch and gloo do not read",
            "NCCL_SOCKET_RETRY_CNT does that",
        ),
        ("NCCL_FASTRAK_X", "NCCL_FASTRAK_X: Google's GPUDirect-TCPXO plug-in reads this variable", "Source: "),
        ("collective operation timeout", '"Watchdog caught collective operation timeout"', "DD610 "),
        (
            "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3) ran for 600028 milliseconds",
            '"[Rank 1] Watchdog caught collective operation timeout:"',
            "TORCH_FR_BUFFER_SIZE",
        ),
        ("NVRM: Xid (PCI:0000:4a:00): 79, GPU fell", '"NVRM: Xid (PCI:0000:4a:00): 79"', "DD330 "),
        ("Unable to find address for: ib0", '"Unable to find address for: ib0"', "DDJ186 "),
        ("shm-too-small", "DDJ101 shm-too-small (error: the job does not start, or fails)\n", "\nRemedy\n"),
        ("subnet manager", "Best matches for 'subnet manager'\n", "    DD561 "),
        ("DD 401", "DD401 p2p-stalls-between-gpus (error: the job hangs)\n", "\nRemedy\n"),
        ("SHM Too Small", "DDJ101 shm-too-small (error: the job does not start, or fails)\n", "\nRemedy\n"),
        ("nccl ib disable", "NCCL_IB_DISABLE (read by nccl", "\nDefault: 0\n"),
        ("137", "exit code 137 is 128 + 9: SIGKILL (signal 9;", "Xid 137: "),
        ("Exit Code 139", "exit code 139 is 128 + 11: SIGSEGV", "DDJ193 "),
        ("exitcode: -9", "SIGKILL (signal 9; torchrun: exitcode: -9; a shell: 137)", "DD612 "),
        ("failed (exitcode: -11)", "SIGSEGV ", "DDJ193 "),
        ("-11", "SIGSEGV ", "DDJ193 "),
        ("ExitCode=0:9", "SIGKILL ", "DD612 "),
        ("ExitCode=1:0", "exit code 1\n", "an uncaught exception"),
        ("SIGKILL", "SIGKILL ", "DD225 "),
        ("Signal SIGBUS", "SIGBUS (signal 7;", "DD237 "),
        ("signal 7", "SIGBUS (signal 7;", "DDJ102 "),
        ("sig15", "SIGTERM ", "asked to exit by the scheduler"),
        ("KILLED", "SIGKILL ", "DD612 "),
        ("Segmentation fault (core dumped)", "SIGSEGV ", "DDJ193 "),
        ("exit code 127", "exit code 127\n", "did not find the command"),
        ("status 255", "exit code 255\n", "ssh could not connect"),
        ("exit code 77", "exit code 77\n", "The program defines this code"),
        ("signal 63", "signal 63\n", "A real-time signal"),
        ("xid79", "Xid 79: fallen off the bus. The host needs a reboot.\n", "DD330 "),
        ("XID 13", "Xid 13: illegal instruction", "DD332 "),
        ("NVRM: Xid (PCI:0000:17:00): 79", '"NVRM: Xid (PCI:0000:17:00): 79"', "Xid 79: fallen off the bus"),
        (
            "kernel: NVRM: Xid (PCI:0000:17:00): 119, pid=4",
            '"NVRM: Xid (PCI:0000:17:00): 119"',
            "Xid 119: the GPU's system",
        ),
        ("xid 999", "Xid 999: unknown to ddp-doctor. Look up this Xid in NVIDIA's catalog", "Source: "),
        ("allreduce", "all-reduce: a collective", "\nCheck allreduce: "),
        ("ALL REDUCE", "all-reduce: a collective", "`ddp-doctor run --only allreduce`"),
        ("all_reduce", "all-reduce: a collective", "DD601 "),
        ("p2p", "P2P: direct copies between GPUs", "\nCheck p2p: "),
        ("gpu speed", "Check gpu_speed: ", "To run only this check: `ddp-doctor run --only gpu_speed`."),
        ("busbw", "busbw: ", "2(n − 1)/n"),  # noqa: RUF001 - as the page has it
        ("AlgBW", "algbw: ", "size divided by time"),
        ("ring", "ring: NCCL's order of ranks", ""),
        ("straggler", "straggler: a rank", ""),
        ("rank", "rank: one process of the job", "RANK (read by launcher)"),
        ("xid " + "(" * 30_000, "Xid: the number of an error", ""),
        ("RANK", "RANK (read by launcher)", "Related rules"),
    ],
)
def test_named_subject_is_explained(text, first, also):
    page = explain(text)

    assert page.startswith(first)
    assert also in page


@pytest.mark.parametrize("width", [60, 100])
def test_lines_of_a_page_fit_the_terminal_without_losing_words(width):
    for name in ("DD401", "NCCL_P2P_LEVEL", "DD1", "connection refused"):
        page = explain(name, width)
        assert max(map(len, page.splitlines())) <= width
        assert page.split() == explain(name, 10_000).split()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("DD000", "no rule, variable, error or term matches 'DD000'; run `ddp-doctor explain` to list all rules"),
        ("stragler", "did you mean 'straggler'"),
        ("timeoutt", "did you mean 'timeout'"),
        ("nccl_ib_timeot", "did you mean 'NCCL_IB_TIMEOUT'?"),
        ("p2p-stalls-between-gpu", "did you mean 'p2p-stalls-between-gpus'"),
        (
            "x" * 10_000_000,
            "the text has 10000000 characters, but at most 32768 are allowed; run `ddp-doctor logs FILE`",
        ),
        ("y" * 30_000, f"term matches '{'y' * 60} ...'"),
        ("/" * 30_000, "run `ddp-doctor explain` to list all rules"),
        ("qwx zrt " * 1000, "run `ddp-doctor explain` to list all rules"),
        ("\udcff\x00\x1b[31m", "run `ddp-doctor explain` to list all rules"),
    ],
)
def test_unknown_subject_is_one_sentence_with_suggestions(text, sentence):
    with pytest.raises(UsageError) as refused:
        explain(text)

    assert sentence in str(refused.value)


@pytest.mark.parametrize("sign", [sign for sign, _ in SIGNS.values() if sign.page], ids=lambda sign: sign.id)
def test_text_without_a_cause_is_found_with_its_rules(sign: Sign):
    page = sign.page
    assert page is not None
    for words in sign.words:
        text = explain(words, 10_000)
        assert page.means in text
        assert all(f"{code} {RULES[code].name}" in text for code in page.codes)
    assert {*page.settings} <= {*variables()}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Detected mismatch between collectives on ranks", "collective-mismatch"),
        ("DDP expects same model across all ranks", "collective-mismatch"),
        ("Unable to find address for", "gloo-ifname-invalid"),
        ("Bootstrap : no socket interface found", "no-socket-interface"),
        ("The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE", "port-in-use"),
        ("addresses of (node0, 29400) cannot be retrieved (gai error: -2 - Name", "hostname-unresolvable"),
        ("environment variable RANK expected, but not set", "launch-env-missing"),
        ("Default process group has not been initialized", "pg-not-initialized"),
        ("Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)", "shm-too-small"),
        ("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible", "shm-too-small-dataloader"),
        ("MNNVL (cliqueSize 8) is available but not working on this system", "imex-not-working"),
        ("Duplicate GPU detected", "duplicate-gpu"),
        ("CUDA error: invalid device ordinal", "invalid-device-ordinal"),
        ("ProcessGroupNCCL is bound to device cuda:0 but an operation was issued on cuda:1", "device-mismatch"),
        ("Expected all tensors to be on the same device, but found at least two devices", "device-mismatch"),
        ("all CUDA-capable devices are busy or unavailable", "gpu-exclusive-mode"),
        ("CUDA out of memory", "gpu-out-of-memory"),
        ("CUDA error: uncorrectable ECC error encountered", "gpu-ecc-error"),
        ("system not yet initialized", "fabric-manager-down"),
        ("CUDA driver version is insufficient for CUDA runtime version", "driver-too-old"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver-library-mismatch"),
        ("NVRM: Xid (PCI:0000:4a:00): 79, GPU has fallen off the bus.", "gpu-off-bus"),
        ("Distributed package doesn't have NCCL built in", "nccl-not-built"),
        ("libtorch_cuda.so: undefined symbol: ncclCommRegister", "nccl-library-conflict"),
        ("Too many open files", "too-many-open-files"),
        ("Expected to have finished reduction in the prior iteration", "ddp-unused-parameters"),
        ("DistributedDataParallel is not needed when a module doesn't have any", "ddp-no-grad-params"),
    ],
)
def test_text_of_a_failed_job_names_the_checks_that_find_its_cause_before_a_job(text: str, cause: str):
    page = explain(text, 10_000)

    assert f" {cause} (error)" in page
    found_by = next(row.found_by for row in JOB_CAUSES if row.name == cause)
    assert all(f"{code} {RULES[code].name}" in page for code in found_by)


def test_rules_of_every_exit_code_and_signal_exist():
    known = {*SIGNALS.values(), *EXIT_CODES.values()}

    assert {code for ending in known for code in ending.codes} <= RULES.keys()


@pytest.mark.parametrize(
    ("phrase", "name"),
    [
        ("stuck at init_process_group", "process-group-cannot-start"),
        ("NCCL timeout", '"NCCL operation timed out"'),
        ("address already in use", "port-in-use"),
        ("loss is nan", "loss-not-finite"),
        ("cuda out of memory", "gpu-out-of-memory"),
        ("torchrun hangs at the end", "torchrun-does-not-end"),
        ("find_unused_parameters", "ddp-unused-parameters"),
        ("gpu falls off the bus", "gpu-off-bus"),
        ("port 29500 is taken", "port-in-use"),
        ("dataloader worker killed", "dataloader-worker-died"),
        ("job freezes at first all_reduce", "p2p-stalls-between-gpus"),
        ("shared memory too small in docker", "shared-memory-too-small"),
        ("infinband not used", "setting-forbids-rdma"),
        ("gloo connect full mesh failed", "gloo-loopback-hostname"),
    ],
)
def test_phrase_of_a_user_finds_the_rule(phrase, name):
    assert name in explain(phrase, 10_000)


SCREENS = [each.value for kind in (Verdict, Confidence, Severity, CheckStatus) for each in kind]
SCREENS += ["NV18", "NV4", *(code.code for code in LINK_CODES if "#" not in code.code)]
SCREENS += [status.word for status in P2P_STATUSES] + [*NCCL_PATHS, *BY_NAME]
SCREENS += ["P2P/CUMEM", "P2P/IPC", "SHM/direct/direct", "NET/Socket/0", "NET/IB/1(2)/GDRDMA", "COLLNET/SHARP/0"]
SCREENS += ["algbw", "busbw", "#wrong", "straggler", "GPUDirect RDMA", "NVLS", "CollNet", "PXN", "stragglers"]
SCREENS += [name for name in PARTS if name not in ("not_told", "other")]


@pytest.mark.parametrize("term", dict.fromkeys(SCREENS))
def test_term_that_reports_print_is_explained(term):
    explained = explain(term, 10_000).partition(":")[0]

    name = re.sub(r"[\W_]", "", term.partition("/")[0].lower()).removesuffix("s")
    assert name in re.sub(r"[\W_]", "", explained.lower())


def test_explain_without_text_lists_every_rule_below_its_check():
    lines = explain("", 10_000).splitlines()

    listed = [line.split()[0] for line in lines if line.startswith("    ")]
    assert sorted(listed) == sorted(RULES)
    assert lines.index(next(line for line in lines if line.startswith("p2p "))) < lines.index(
        "    DD606 pair-of-ranks-corrupts-data (error)"
    )


def test_an_explanation_has_no_markup_of_the_pages():
    assert not any("``" in explain(code) for code in RULES)


def test_retired_code_can_be_ignored_but_an_unknown_one_cannot():
    assert ignored(["DD722,DD601"]) == ("DD722", "DD601")
    with pytest.raises(UsageError, match="unknown rule 'DD000'"):
        ignored(["DD000"])


def test_texts_of_signs_begin_with_whole_words():
    samples = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests/features/jobs/logs/samples").glob("*.md")
    )
    lower = [words for sign, _ in SIGNS.values() for words in sign.words if words[0].islower()]
    starts = ((words, match.start()) for words in lower for match in re.finditer(re.escape(words), samples))

    assert [words for words, start in starts if re.fullmatch("[A-Za-z]", samples[start - 1 : start])] == []
