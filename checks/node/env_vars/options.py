"""DD132: options that do not reach sbatch or the launcher, or that have no effect."""

import re
from collections.abc import Iterator

from ddp_doctor.checks.node.env_vars.launches import backend, draft, is_above_range, is_open
from ddp_doctor.facts.node.env_vars import HeaderFault, Launch, SettingText
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import in_job_script
from ddp_doctor.settings.launches.starts import VARIABLE
from ddp_doctor.wording.findings import finding

#: A program in place of a script.
_NO_SCRIPT = re.compile(r"(?:\S*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed)")


@rule("DD132", "launcher-option-without-effect", Consequence.FAILS, SettingText)
def launcher_option_without_effect(recording: Recording) -> Iterator[Draft]:
    """Options do not reach sbatch or the launcher, or the chosen rendezvous ignores them.

    Finds: A line of options that the shell runs as a separate command, because the line before it does not end with
        \\, or has a space or a comment after it. --standalone together with --nnodes above 1: each node then waits
        for the others at its own localhost. An option that sbatch does not have, and #SBATCH lines that it ignores:
        misspelt ones, and those behind the first command. A variable that only a script written by this one sets, but
        that expands while it is written. --node-rank with --rdzv-backend=c10d, information: c10d numbers the nodes.
    Why: torchrun prints a warning at most, and the job differs from its command line.
    Remedy: End each line but the last with \\ and nothing behind it; remove the option, or choose the rendezvous that
        uses it.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    text = recording.first(SettingText)
    for fault in text.header_faults if text else ():
        yield _of_header(fault)
    for launch in text.launches if text else ():
        given = launch.arguments
        if launch.cut:
            yield _of_cut(launch)
        elif launch.program != "configuration":
            yield from _of_words(launch)
        if launch.starts != "torchrun" or launch.cut:
            continue
        is_several = (launch.agents or (1, 1))[0] > 1
        is_meant = is_open(launch) and given.keys() & {"--node-rank", "--master-addr", "--rdzv-endpoint"}
        if "--standalone" in given and (is_several or is_meant):
            number = f"--nnodes={given['--nnodes'].text}"
            title = f"--standalone with {number}: each node waits for the others at its own localhost"
            why = "--standalone moves the rendezvous to localhost, and keeps --nnodes"
            severity = None if is_several else Severity.WARNING
            yield draft(launch, title, why, in_job_script("Remove --standalone"), detail="", severity=severity)
        elif "--node-rank" in given and backend(launch) == "c10d":
            title = "--node-rank has no effect with --rdzv-backend=c10d"
            why = f"--node-rank={given['--node-rank'].text}"
            yield draft(launch, title, why, in_job_script("Remove --node-rank"), detail="", severity=Severity.INFO)


def _of_header(fault: HeaderFault) -> Draft:
    """Return the finding about a directive that sbatch ignores or rejects."""
    severity = Severity.WARNING
    if fault.kind == "option":
        severity, why, fix = Severity.ERROR, f"did you mean {fault.meant}?", f"Write {fault.meant}"
        title = f"sbatch has no option {fault.typed}, so it refuses the job"
    elif fault.kind == "late":
        title = f"sbatch ignores line {fault.line}: #SBATCH lines count only before the first command"
        why, fix = "a command is above it", "Move the line above the first command"
    else:
        title = f"sbatch ignores line {fault.line}: {fault.typed} is a comment, not #SBATCH"
        why, fix = "only lines that begin with #SBATCH are options", "Begin the line with #SBATCH"
    return finding(
        [Culprit(kind="setting", name=fault.typed)],
        title,
        Evidence(text=f"line {fault.line}: {fault.quote}; {why}", expected_from="man sbatch"),
        in_job_script(fix),
        confidence=Confidence.LIKELY,
        severity=severity,
    )


def _of_cut(launch: Launch) -> Draft:
    """Return the finding about a launch whose command ends before its last option."""
    what = launch.starts if launch.starts != "python" else "the script"
    title = f"The options in line {launch.cut} do not reach {what}: the command ends in front of them"
    why = f"the shell runs line {launch.cut} as a separate command"
    fix = "End each line but the last with \\ and nothing behind it, also no space or comment"
    if launch.cut == launch.line:
        title = f"A line of the command ends with /, which {what} takes for the script"
        why, fix = "only \\ continues a command", "Write \\ instead of / at the end of the line"
    return draft(launch, title, why, in_job_script(fix), detail="")


def _of_words(launch: Launch) -> Iterator[Draft]:
    """Yield the findings about words that a launcher refuses."""
    if launch.misspelt:
        typed, meant = launch.misspelt
        yield draft(launch, f"torchrun has no option {typed}", f"did you mean {meant}?", in_job_script(f"Use {meant}"))
    if _NO_SCRIPT.fullmatch(launch.script):
        title = f"{launch.starts} starts {launch.script} as the script, because it follows the options"
        why = f"{launch.starts} runs Python itself"
        yield draft(launch, title, why, in_job_script(f"Remove {launch.script} from the command"), detail="")
    for option, value in launch.arguments.items():
        if value.kind == "literal" and VARIABLE.fullmatch(value.text):
            title = f"{option}={value.text} is the name of a variable: $ is missing"
            yield draft(
                launch, title, "the launcher takes it literally", in_job_script(f"Write ${value.text}"), detail=""
            )
            break
    given = ((name, value) for name, value in launch.arguments.items() if name != "--rdzv-id")  # may be empty
    if early := next(((name, value) for name, value in given if value.means == "unset"), None):
        title = f"{early[0]}={early[1].text} expands before the job sets it"
        why = "the script that writes this one expands it"
        fix = in_job_script("Quote the mark of the here-document (<<'EOF'), or write \\$ in front of the name")
        yield draft(launch, title, why, fix, detail="The launcher gets an empty value.")
    port = launch.arguments.get("port") or launch.environment.get("MASTER_PORT")
    if port is not None and is_above_range(port.text):
        fix = in_job_script("Give a port from 1024 to 65535")
        yield draft(launch, f"The port {port.text} is above 65535", "the highest port is 65535", fix, detail="")
