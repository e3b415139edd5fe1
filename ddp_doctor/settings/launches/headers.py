"""The scheduler directives of a job script: their requests, and directives without effect.

Sources: man sbatch (SLURM 23.11); PBS Professional 2022.1 User's Guide, chapter 4; IBM Spectrum LSF 10.1 bsub.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from ddp_doctor.facts.node.env_vars import Argument, HeaderFault, Launch
from ddp_doctor.settings.launches.running import quoted
from ddp_doctor.settings.launches.starts import SLURM, fields_of, leading, names, words_of_option

#: ``# SBATCH`` is not a directive: people disable a line this way.
_DIRECTIVE = re.compile(r"#([A-Za-z]{5,8}):?(?=\s+-{1,2}[A-Za-z])")
#: Options of sbatch, without the options of a site's plug-ins.
_SBATCH_OPTIONS = sorted(
    names("""
    --account --acctg-freq --array --batch --bb --bbf --begin --chdir --cluster-constraint --clusters --comment
    --constraint --container --container-id --contiguous --core-spec --cores-per-socket --cpu-freq --cpus-per-gpu
    --cpus-per-task --deadline --delay-boot --dependency --distribution --error --exclude --exclusive --export
    --export-file --extra --extra-node-info --get-user-env --gid --gpu-bind --gpu-freq --gpus --gpus-per-node
    --gpus-per-socket --gpus-per-task --gres --gres-flags --help --hint --hold --ignore-pbs --input --job-name
    --kill-on-invalid-dep --licenses --mail-type --mail-user --mcs-label --mem --mem-bind --mem-per-cpu --mem-per-gpu
    --mincpus --network --nice --no-kill --no-requeue --nodefile --nodelist --nodes --ntasks --ntasks-per-core
    --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --oom-kill-step --open-mode --output --overcommit
    --oversubscribe --parsable --partition --power --prefer --priority --profile --propagate --qos --quiet --reboot
    --requeue --reservation --resv-ports --segment --share --signal --sockets-per-node --spread-job --stepmgr
    --switches --tasks-per-node --test-only --thread-spec --threads-per-core --time --time-min --tmp --tres-bind
    --tres-per-task --uid --usage --use-min-nodes --verbose --version --wait --wait-all-nodes --wckey --workdir --wrap
    """)
)
_NEAR = 0.88


def job_of(lines: Sequence[str], options: Sequence[str] = ()) -> Launch | None:
    """Return what the lines before the first command request, or None; None also for jobs with several parts.

    Args:
        lines: a job script for SLURM, PBS or LSF
        options: of sbatch's command line, which take precedence
    """
    first, header = _header(lines)
    slurm = [*_words(header, "#SBATCH"), *options]
    if slurm:
        return None if {"hetjob", "packjob"} & set(slurm) else _slurm_job(slurm, first)
    pbs, lsf = (" ".join(_texts(header, prefix)) for prefix in ("#PBS", "#BSUB"))
    if pbs:
        return Launch(program="pbs", line=first, **_pbs_fields(pbs))
    return Launch(program="lsf", line=first, **_lsf_fields(lsf)) if lsf else None


def array_of(lines: Sequence[str]) -> int | None:
    """Return the number of jobs in ``#SBATCH --array=0-3``, or None."""
    for line in lines:
        found = re.match(r"#SBATCH\s+(?:--array[= ]|-a ?)(\d{1,6})-(\d{1,6})(?:%\d+)?\s*(?:#.*)?$", line)
        if found:
            return int(found[2]) - int(found[1]) + 1
    return None


def faults_of_header(lines: Sequence[str]) -> Iterator[HeaderFault]:
    """Yield the lines for sbatch that it ignores, and options that it does not have."""
    has_directive = False
    behind = _behind_header(lines)
    writes_scripts = any("<<" in line for line in lines)
    for number, line in enumerate(lines, 1):
        quote = quoted(line.strip())
        if line.startswith("#SBATCH") and number > behind:
            if has_directive and not writes_scripts:
                yield HeaderFault(line=number, quote=quote, kind="late", typed="#SBATCH")
        elif line.startswith("#SBATCH") and line[7:8].isspace():
            has_directive = True
            for name, _ in leading(_words([line], "#SBATCH"), SLURM):
                if meant := _meant_option(name):
                    yield HeaderFault(line=number, quote=quote, kind="option", typed=name, meant=meant)
        elif number <= behind and (found := _DIRECTIVE.match(line)) and _is_meant_for_sbatch(found[1]):
            yield HeaderFault(line=number, quote=quote, kind="directive", typed=found[0], meant="#SBATCH")


def _behind_header(lines: Sequence[str]) -> int:
    """Return the number of lines before the first command."""
    return next((at for at, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))


def _header(lines: Sequence[str]) -> tuple[int, list[str]]:
    """Return the number of the first line for a scheduler, and the lines before the first command."""
    header = [*lines[: _behind_header(lines)]]
    first = next((at for at, line in enumerate(header, 1) if line.startswith(("#SBATCH", "#PBS", "#BSUB"))), 0)
    return first, header


def _words(header: Sequence[str], prefix: str) -> list[str]:
    """Return the words of the options in these lines."""
    of_lines = (text.split() for text in _texts(header, prefix))
    return [word for words in of_lines for word in words[: _behind_all_options(words)]]


def _texts(header: Sequence[str], prefix: str) -> Iterator[str]:
    """Yield what follows the prefix, without quotes and comments."""
    for line in header:
        if line.startswith(prefix):
            yield line[len(prefix) :].split(" #")[0].replace('"', "").replace("'", "").strip()


def _behind_all_options(words: Sequence[str]) -> int:
    """Return the place of the first word that is neither an option nor the value of one."""
    at = 0
    while at < len(words) and (words[at].startswith("-") or words[at] in ("hetjob", "packjob")):
        at += words_of_option(words, at)
    return at


def _slurm_job(words: Sequence[str], line: int) -> Launch:
    unexpanded = {name: Argument(text=value) for name, value in leading(words, SLURM) if "$" in value and name in SLURM}
    job = Launch(program="sbatch", line=line, arguments=unexpanded, **fields_of(words, SLURM))
    is_by_hosts = job.hosts and job.nodes is None and job.tasks is None
    return job.model_copy(update={"nodes": (len(job.hosts), len(job.hosts))}) if is_by_hosts else job


def _pbs_fields(options: str) -> dict[str, Any]:
    """Return the fields of ``-l select=2:ngpus=4`` and ``-l nodes=2:ppn=4:gpus=4``; ``-l ngpus=8`` is of the job."""
    text = ",".join(re.findall(r"(?:^| )-l *(\S+)", options))
    nodes = re.search(r"(?:select|nodes)=(\d{1,6})(?![^,]*\+)(?=[:,]|$)", text)
    each = re.search(r"(?:select|nodes)=[^,+]*?:n?gpus=(\d{1,6})", text)
    whole = re.search(r"(?:^|,)ngpus=(\d{1,6})", text)
    found: dict[str, Any] = {"nodes": (int(nodes[1]), int(nodes[1]))} if nodes else {}
    found |= {"gpus_per_node": int(each[1])} if each else {"gpus": int(whole[1])} if whole else {}
    return found


def _lsf_fields(text: str) -> dict[str, Any]:
    """Return the fields of ``-nnodes 2``, ``-n 8 -R span[ptile=4]`` and ``-gpu num=4``."""
    slots, hosts = (re.search(rf"(?:^| )-{name} (\d{{1,6}})", text) for name in ("n", "nnodes"))
    tile, gpus = re.search(r"ptile=(\d{1,6})", text), re.search(r"-gpu num=(\d{1,6})", text)
    nodes = int(hosts[1]) if hosts else None
    if nodes is None and ("span[hosts=1]" in text or (slots and slots[1] == "1")):
        nodes = 1
    elif nodes is None and slots and tile and int(tile[1]):
        nodes = -(-int(slots[1]) // int(tile[1]))
    found: dict[str, Any] = {"nodes": (nodes, nodes)} if nodes else {}
    return found | ({"gpus_per_node": int(gpus[1])} if gpus else {})


def _meant_option(name: str) -> str:
    """Return the correct form of a misspelled or ambiguous option; empty for options that are known or a plug-in's."""
    known = [option for option in _SBATCH_OPTIONS if option.startswith(name)]
    if not name.startswith("--") or name in known or len(known) == 1:
        return ""
    return next(iter(get_close_matches(name, _SBATCH_OPTIONS, 1, _NEAR)), "")


def _is_meant_for_sbatch(word: str) -> bool:
    return bool(get_close_matches(word.upper(), ("SBATCH",), 1, 0.8))
