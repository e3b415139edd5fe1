#!/bin/sh
# SLURM prolog: ddp-doctor looks at this node before each job and drains it only where it is sick.
#
# Install, on every compute node:
#     ddp-doctor template slurm-prolog > /etc/slurm/prolog.d/50-ddp-doctor.sh
#     chmod 755 /etc/slurm/prolog.d/50-ddp-doctor.sh
# and in slurm.conf:
#     Prolog=/etc/slurm/prolog.d/*
#     PrologFlags=Alloc
# Python and ddp-doctor must be installed where root trusts what lies there, never in a user's home.
#
# Exit code 1 makes SLURM drain the node and requeue the job; only a report that says "sick" gives it, for
# Python exits 1 by itself too. A doctor that is missing, fails, cannot decide or takes too long exits 0 and
# leaves a line in the log: an ill doctor must not drain healthy nodes.
#
# SLURM runs this as root, without PATH and HOME. Nothing of the user's is loaded: Python runs isolated
# (-I), and the loader's variables are removed.

LIMIT_S=90                            # more than the slowest honest answer of a GPU driver
LOG=/var/log/ddp-doctor-prolog.log    # empty: syslog only
TIMEOUT=/usr/bin/timeout
LOGGER=/usr/bin/logger
# Without this SLURM's reason for the drain is "Prolog error". Sites that forbid scheduler calls in a prolog
# leave it empty; others name scontrol, and the reason then names the GPU.
SCONTROL=
#SCONTROL=/usr/bin/scontrol

unset LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT PYTHONPATH PYTHONHOME ENV BASH_ENV IFS
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C.UTF-8
XDG_STATE_HOME=/var/lib               # recordings go to /var/lib/ddp-doctor
export PATH LC_ALL XDG_STATE_HOME
umask 077
cd / || exit 0

say() {
    line="$(date '+%Y-%m-%dT%H:%M:%S%z') job ${SLURM_JOB_ID:-none} on ${SLURMD_NODENAME:-this node}: $1"
    if [ -n "$LOG" ] && printf '%s\n' "$line" 2>/dev/null >>"$LOG"; then
        return
    fi
    if [ -x "$LOGGER" ]; then
        "$LOGGER" -t ddp-doctor-prolog -- "$line" </dev/null >/dev/null 2>&1
    fi
}

unsure() {
    say "$1; the job may start"
    exit 0
}

[ -x "$TIMEOUT" ] || unsure "$TIMEOUT is missing, nothing was looked at"
work=$(mktemp -d /tmp/ddp-doctor-prolog.XXXXXXXX) || unsure "no temporary folder, nothing was looked at"
trap 'rm -rf "$work"' EXIT

# Output goes to files: a pipe would be held open by a helper that the GPU driver keeps from dying.
"$TIMEOUT" -k 5 "$LIMIT_S" @PYTHON@ -I -m ddp_doctor prolog --json "$work/report.json" \
    </dev/null >"$work/output" 2>&1
code=$?
if [ "$code" -ne 0 ] && [ -n "$LOG" ]; then
    head -c 65536 "$work/output" 2>/dev/null >>"$LOG"
fi

case $code in
0) exit 0 ;;
1) ;;
124 | 137) unsure "ddp-doctor did not end within $LIMIT_S s" ;;
126 | 127) unsure "ddp-doctor could not be started (exit $code)" ;;
*) unsure "ddp-doctor could not decide (exit $code)" ;;
esac

reason=$("$TIMEOUT" -k 1 15 @PYTHON@ -I -c '
import json, sys
report = json.load(open(sys.argv[1], encoding="utf-8"))
if report["verdict"] != "sick":
    sys.exit(1)
findings = report["findings"] or [{"severity": "error", "code": "sick", "title": report["summary"]}]
worst = next((f for f in findings if f["severity"] == "error"), findings[0])
words = " ".join(("%s: %s" % (worst["code"], worst["title"])).split())[:200]
print("".join(c if " " <= c <= "~" else "?" for c in words))
' "$work/report.json" 2>/dev/null) || unsure "ddp-doctor exited 1 without a report that says sick"
reason="ddp-doctor $reason"
say "sick: $reason"
if [ -n "$SCONTROL" ] && [ -n "$SLURMD_NODENAME" ]; then
    "$TIMEOUT" -k 1 10 "$SCONTROL" update "nodename=$SLURMD_NODENAME" state=drain "reason=$reason" \
        </dev/null >>"${LOG:-/dev/null}" 2>&1 || say "the reason could not be told to SLURM"
fi
exit 1
