#!/usr/bin/env bash
# Makes the disk image of a machine with real OpenZFS: Debian 13, the cloud kernel, the module from
# zfs-dkms, an SSH server that lets one key in, Python with what mirrord imports.
#
#   image.sh FOLDER MIRROR WHEELS     root only; FOLDER gets root.img, vmlinuz, initrd and keys
#
# MIRROR is Debian's archive as this machine's own apt knows it, WHEELS a folder with the Python
# packages for the guest. Neither leaves a trace in the image.
set -euo pipefail
folder=$1 mirror=$2 wheels=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$folder/root
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

say() { printf 'zfsvm: %s (%d s)\n' "$*" "$SECONDS"; }
inside() { chroot "$root" "$@"; }

clean_up() {
    local place
    for place in dev/pts dev proc sys; do umount -l "$root/$place" 2>/dev/null || true; done
}
trap clean_up EXIT

# 1. The base, as small as an SSH server and a kernel allow.
say "the base system"
debootstrap --variant=minbase --components=main,contrib \
    --include=systemd-sysv,udev,kmod,iproute2,openssh-server,ca-certificates,python3,python3-venv \
    trixie "$root" "$mirror" >"$folder/debootstrap.log"
cp /etc/resolv.conf "$root/etc/resolv.conf"
apt-config dump | grep -E '^(Acquire::https?|Acquire::Check)' >"$root/etc/apt/apt.conf.d/00build" || true
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sys "$root/sys"
mount --bind /dev "$root/dev"
mount --bind /dev/pts "$root/dev/pts"

# 2. The kernel and the module; then the tools of the benchmark.
say "the kernel and the ZFS module (some minutes)"
mkdir -p "$root/etc/initramfs-tools/conf.d"
install_in() { inside apt-get -q install -y --no-install-recommends "$@" >>"$folder/apt.log" 2>&1; }
inside apt-get -q update >>"$folder/apt.log"
install_in initramfs-tools zstd
cp "$here/guest/initramfs.conf" "$root/etc/initramfs-tools/conf.d/mirrord"
cp "$here/guest/modules" "$root/etc/initramfs-tools/modules"
install_in linux-image-cloud-amd64 linux-headers-cloud-amd64
kernel=$(basename "$root"/boot/vmlinuz-* | sed 's/^vmlinuz-//')
install_in dkms gcc make libc6-dev
install_in zfs-dkms zfsutils-linux
inside dkms autoinstall -k "$kernel" >>"$folder/apt.log" 2>&1
module=$(find "$root/lib/modules/$kernel" -name 'zfs.ko*' | head -1)
[ -n "$module" ] || { echo "error: no module was built, see $folder/apt.log" >&2; exit 1; }
install_in sanoid mbuffer pv lzop dmsetup

# 3. The module stays, what made it goes.
say "removing the compiler"
mkdir -p "$folder/kept"
cp "$(dirname "$module")"/*.ko* "$folder/kept/"
inside apt-mark manual zfsutils-linux sanoid python3 python3-venv >>"$folder/apt.log"
inside apt-get -q purge -y --autoremove zfs-dkms dkms linux-headers-cloud-amd64 gcc make \
    libc6-dev >>"$folder/apt.log" 2>&1
mkdir -p "$root/lib/modules/$kernel/extra"
cp "$folder"/kept/*.ko* "$root/lib/modules/$kernel/extra/"
inside depmod "$kernel"
inside modinfo -k "$kernel" -F version zfs

# 4. Python's packages, from the folder only.
say "Python's packages"
inside python3 -m venv /opt/mirrord
cp -r "$wheels" "$root/tmp/wheels"
env -i PATH="$PATH" chroot "$root" /opt/mirrord/bin/python -m pip -q install --no-index \
    --find-links /tmp/wheels --requirement /tmp/wheels/requirements.txt
rm -rf "$root/tmp/wheels"

# 5. How it starts, and who gets in.
say "the settings"
cp -r "$here/guest/etc/." "$root/etc/"
ssh-keygen -q -t ed25519 -N '' -C zfsvm -f "$folder/key"
inside useradd -m -s /bin/bash tester
for home in root home/tester; do
    mkdir -p -m 700 "$root/$home/.ssh"
    cp "$folder/key.pub" "$root/$home/.ssh/authorized_keys"
done
inside chown -R tester:tester /home/tester
rm -f "$root"/etc/ssh/ssh_host_*
inside ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
cp "$root/etc/ssh/ssh_host_ed25519_key.pub" "$folder/host_key.pub"
echo zfsvm >"$root/etc/hostname"
while read -r unit; do
    [ -z "$unit" ] || inside systemctl -q mask "$unit"
done <"$here/guest/masked"
inside systemctl -q enable ssh.service systemd-networkd.service
inside update-initramfs -u -k "$kernel" >>"$folder/apt.log" 2>&1
cp "$root/boot/vmlinuz-$kernel" "$folder/vmlinuz"
cp "$root/boot/initrd.img-$kernel" "$folder/initrd"

# 6. The image.
say "the disk image"
clean_up
rm -rf "$root/usr/sbin/policy-rc.d" "$root/etc/apt/apt.conf.d/00build" "$root/etc/resolv.conf" \
    "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root/etc/apt/sources.list" \
    "$root"/usr/share/doc/* "$root"/usr/share/locale/* "$root"/boot/* "$root"/var/log/*.log \
    "$root/var/log/apt"
truncate -s 3G "$folder/root.img"
mke2fs -q -t ext4 -L root -d "$root" "$folder/root.img"
rm -rf --one-file-system "$root" "$folder/kept"
say "done"
