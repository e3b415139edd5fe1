#!/bin/sh
# SLURM prolog: ddp-doctor looks at this node before each job and drains it only where it is unhealthy.
#
# Install, on every compute node (docs/how-to/slurm.md tells more):
#     ddp-doctor template slurm-prolog > /etc/slurm/prolog.d/50-ddp-doctor.sh
#     chmod 755 /etc/slurm/prolog.d/50-ddp-doctor.sh
# and in slurm.conf:
#     Prolog=/etc/slurm/prolog.d/*
#     PrologFlags=Alloc
#     SchedulerParameters=nohold_on_prolog_fail
# Python and ddp-doctor must be installed where root trusts what lies there, never in a user's home.
#
# Exit code 1 makes SLURM drain the node and requeue the job; only a report that says "unhealthy" gives it, for
# Python exits 1 by itself too. A doctor that is missing, fails, cannot decide or takes too long exits 0 and
# leaves a line in the log: an ill doctor must not drain healthy nodes.

LIMIT_S=90                            # more than the slowest honest answer of a GPU driver
LOG=/var/log/ddp-doctor-prolog.log    # empty: syslog only
# Without this SLURM's reason for the drain is "Prolog error". Sites that forbid scheduler calls in a prolog
# leave it empty; others name scontrol, and the reason then names the GPU.
SCONTROL=
#SCONTROL=/usr/bin/scontrol
# The GPUs that every node with this script has: a node that shows fewer is unhealthy, whatever its job asked for. Empty:
# only those that SLURM gave the job and those on the PCI bus are missed, so that a node without GPUs is healthy.
REQUIRE_GPUS=@GPUS@
NAME=ddp-doctor-prolog
OTHERWISE="the job may start"

@COMMON@
examine
drain
exit 1
