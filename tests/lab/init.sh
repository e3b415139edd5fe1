#!/bin/sh
# Process 1 of a lab host: `init.sh HOSTNAME FOLDER PYTHON`, started by `unshare` in namespaces of its own.
#
# Makes the namespaces look like a host, prints its own process id as the lab sees it, and lives until its
# standard input ends. Whatever ends the lab closes that pipe, and the kernel then kills all that runs here.
set -eu
hostname=$1 folder=$2 python=$3

read -r pid _ </proc/self/stat # /proc is still the lab's here

# A new /sys shows this host's interfaces; the control groups, which it would hide, are put back.
if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup "$folder/cgroup"; fi
mount -t proc proc /proc
mount -t sysfs sysfs /sys
if [ -d /sys/fs/cgroup ]; then
    mount --rbind "$folder/cgroup" /sys/fs/cgroup
    umount --lazy "$folder/cgroup"
fi
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
for file in hosts resolv.conf nsswitch.conf; do
    [ ! -e "/etc/$file" ] || mount --bind "$folder/etc/$file" "/etc/$file"
done
echo "$hostname" >/proc/sys/kernel/hostname

# Ignoring SIGCHLD makes the kernel reap orphans; dash cannot.
exec "$python" -I -S -c '
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(sys.argv[1], flush=True)
sys.stdin.read()
' "$pid"
