# What follows, up to the line `examine`, is the same in slurm-prolog and slurm-healthcheck.
#
# SLURM runs this as root, without PATH and HOME. Nothing of the user's is loaded: Python runs isolated
# (-I), and the loader's variables are removed.

TIMEOUT=/usr/bin/timeout
LOGGER=/usr/bin/logger
unset LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT PYTHONPATH PYTHONHOME ENV BASH_ENV IFS
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C.UTF-8
XDG_STATE_HOME=/var/lib               # recordings go to /var/lib/ddp-doctor
export PATH LC_ALL XDG_STATE_HOME
umask 077
cd / || exit 0

say() {
    line="$(date '+%Y-%m-%dT%H:%M:%S%z') ${SLURM_JOB_ID:+job $SLURM_JOB_ID on }${SLURMD_NODENAME:-this node}: $1"
    if [ -n "$LOG" ] && printf '%s\n' "$line" 2>/dev/null >>"$LOG"; then
        return
    fi
    if [ -x "$LOGGER" ]; then
        "$LOGGER" -t "$NAME" -- "$line" </dev/null >/dev/null 2>&1
    fi
}

unsure() {
    say "$1; $OTHERWISE"
    exit 0
}

# Returns with $reason only where a report says unhealthy; else leaves with exit code 0.
examine() {
    [ -x "$TIMEOUT" ] || unsure "$TIMEOUT is missing, nothing was looked at"
    work=$(mktemp -d "/tmp/$NAME.XXXXXXXX") || unsure "no temporary folder, nothing was looked at"
    trap 'rm -rf "$work"' EXIT

    # Output goes to files: a pipe would be held open by a helper that the GPU driver keeps from dying.
    "$TIMEOUT" -k 5 "$LIMIT_S" @PYTHON@ -I @DOCTOR@ prolog --json "$work/report.json" --unsure fail \
        ${REQUIRE_GPUS:+--require-gpus "$REQUIRE_GPUS"} </dev/null >"$work/output" 2>&1
    code=$?
    if [ "$code" -ne 0 ] && [ -n "$LOG" ]; then
        say "ddp-doctor ended with exit code $code and printed:"
        head -c 65536 "$work/output" 2>/dev/null >>"$LOG"
    fi

    case $code in
    0)
        if grep -q '^ "verdict": "degraded"' "$work/report.json" 2>/dev/null; then
            say "$(tail -n 1 "$work/output" | head -c 400)"
        fi
        exit 0
        ;;
    1) ;;
    124 | 137) unsure "ddp-doctor did not end within $LIMIT_S s" ;;
    126 | 127) unsure "ddp-doctor could not be started (exit $code)" ;;
    *) unsure "ddp-doctor could not decide (exit $code)" ;;
    esac

    reason=$("$TIMEOUT" -k 1 15 @PYTHON@ -I -c '
import json, sys
report = json.load(open(sys.argv[1], encoding="utf-8"))
if report["verdict"] != "unhealthy":
    sys.exit(1)
findings = report["findings"] or [{"severity": "error", "code": "unhealthy", "title": report["summary"]}]
worst = next((f for f in findings if f["severity"] == "error"), findings[0])
words = " ".join(("%s: %s" % (worst["code"], worst["title"])).split())[:200]
print("".join(c if " " <= c <= "~" else "?" for c in words))
' "$work/report.json" 2>/dev/null) || unsure "ddp-doctor exited 1 without a report that says unhealthy"
    reason="ddp-doctor $reason"
    say "unhealthy: $reason"
}

# Tells SLURM why, where it may be told, unless the node is drained already: that reason is a person's, or ours.
drain() {
    if [ -z "$SCONTROL" ] || [ -z "$SLURMD_NODENAME" ]; then
        return
    fi
    shown=$("$TIMEOUT" -k 1 10 "$SCONTROL" show node "$SLURMD_NODENAME" </dev/null 2>/dev/null)
    shown=${shown#* State=}
    case ${shown%% *} in
    *DRAIN*) say "the node is drained already, the reason it has stays" ;;
    *)
        "$TIMEOUT" -k 1 10 "$SCONTROL" update "nodename=$SLURMD_NODENAME" state=drain "reason=$reason" \
            </dev/null >>"${LOG:-/dev/null}" 2>&1 || say "SLURM could not be told"
        ;;
    esac
}
