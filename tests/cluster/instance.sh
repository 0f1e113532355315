#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The first process of an instance, which box boots. Its variables, box_..., come from the kernel's command line.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
for word in $(cat /proc/cmdline); do
  case $word in box_*) declare "$word" ;; esac
done
for directory in /run /mnt /var/lib/nfs /dev/shm; do
  mkdir -p "$directory" 2>/dev/null
  mount -t tmpfs tmpfs "$directory"
done
mkdir -p /mnt/{share,nfs,tmp} /run/modules/lib
mount -t hostfs -o "$box_share" none /mnt/share
mount --bind /mnt/share/hosts /etc/hosts
ln -s /usr/lib/uml/modules /run/modules/lib/modules
for module in nfsd nfsv4 sch_netem; do modprobe -d /run/modules "$module"; done
hostname "$box_name"
ip link set lo up
ip addr add "$box_talk/24" dev vec1
ip link set vec1 up
ip addr add "$box_address/24" dev vec0
ip link set vec0 up
export TMPDIR=/mnt/tmp CAIRN_BOX_SHARE=/mnt/share
python3 /mnt/share/instance.py serve "$box_talk"
echo "instance: its server ended"
echo o >/proc/sysrq-trigger
sleep 60
