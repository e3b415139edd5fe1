#!/bin/sh
# SLURM health check: ddp-doctor looks at this node every few minutes and drains it only where it is unhealthy.
#
# Install, on every compute node (docs/how-to/slurm.md tells more):
#     ddp-doctor template slurm-healthcheck > /etc/slurm/ddp-doctor-healthcheck.sh
#     chmod 755 /etc/slurm/ddp-doctor-healthcheck.sh
# and in slurm.conf:
#     HealthCheckProgram=/etc/slurm/ddp-doctor-healthcheck.sh
#     HealthCheckInterval=300
#     HealthCheckNodeState=IDLE,CYCLE
# Python and ddp-doctor must be installed where root trusts what lies there, never in a user's home.
#
# SLURM does nothing with what a health check finds, so this script drains the node itself, and only on a
# report that says "unhealthy". It never resumes a node. It always exits 0: there are slurmds
# that do not register a node before its health check has exited 0 once.

LIMIT_S=30                                 # SLURM kills a health check after 60 s
LOG=/var/log/ddp-doctor-healthcheck.log    # empty: syslog only
SCONTROL=/usr/bin/scontrol                 # empty: log only, drain nothing
#export SLURM_CONF=/opt/slurm/etc/slurm.conf    # where scontrol does not find it by itself
# The GPUs that every node with this script has: a node that shows fewer is unhealthy, whatever its job asked for. Empty:
# only those that SLURM gave the job and those on the PCI bus are missed, so that a node without GPUs is healthy.
REQUIRE_GPUS=@GPUS@
NAME=ddp-doctor-healthcheck
OTHERWISE="the node stays as it is"

@COMMON@
examine
drain
exit 0
