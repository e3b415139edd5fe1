#!/bin/sh
# sbatch gate: ddp-doctor tests the nodes of this job with real ranks before the job starts on them.
#
#     #!/bin/bash
#     #SBATCH --nodes=4 --gpus-per-node=8
#     export NCCL_SOCKET_IFNAME=...      # what the job needs; the doctor tests with it
#     . /etc/slurm/ddp-doctor-gate.sh
#     srun python train.py
#
# Make it with the job's own Python, so that its torch is tested: ddp-doctor template slurm-gate > FILE
# The doctor starts itself on all nodes of the job with srun, one task on each, and reports once.
#
# unhealthy: the script that sourced this ends with exit code 1, so the job does. Unsure, or a doctor that is
# missing, fails or takes too long: one line on stderr, and the job goes on.

ddp_doctor_python=@PYTHON@
ddp_doctor_limit_s=300    # more than roll call, budget and report take together

ddp_doctor_note() {
    printf 'ddp-doctor gate: %s\n' "$1" >&2
}

# Fails only where a report says unhealthy: Python exits 1 by itself too, where the package is missing.
ddp_doctor_gate() {
    if [ -z "${SLURM_JOB_ID:-}" ]; then
        ddp_doctor_note "this is no SLURM job; nothing was tested"
        return 0
    fi
    if ! ddp_doctor_work=$(mktemp -d "${TMPDIR:-/tmp}/ddp-doctor-gate.XXXXXXXX"); then
        ddp_doctor_note "no temporary folder; nothing was tested"
        return 0
    fi
    ddp_doctor_code=0
    timeout --foreground -k 30 "$ddp_doctor_limit_s" "$ddp_doctor_python" @DOCTOR@ run \
        --level quick --quiet --json "$ddp_doctor_work/report.json" </dev/null || ddp_doctor_code=$?
    if [ "$ddp_doctor_code" -eq 1 ]; then
        grep -q '^ "verdict": "unhealthy"' "$ddp_doctor_work/report.json" 2>/dev/null || ddp_doctor_code=3
    fi
    rm -rf "$ddp_doctor_work"
    case $ddp_doctor_code in
    0) ;;
    1)
        ddp_doctor_note "unhealthy, the report is above; the job ends here (sbatch --exclude=NODE leaves a node out)"
        return 1
        ;;
    3) ddp_doctor_note "unsure, see above; the job goes on" ;;
    124 | 137) ddp_doctor_note "no answer within $ddp_doctor_limit_s s; the job goes on untested" ;;
    *) ddp_doctor_note "the nodes could not be tested (exit $ddp_doctor_code), see above; the job goes on" ;;
    esac
}

ddp_doctor_gate || exit 1
