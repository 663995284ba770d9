#!/usr/bin/env bash
# make demo, twice, on a bare Debian that debootstrap makes (12: bookworm, 13: trixie): what is
# committed here, with nothing that this machine has but the kernel. As root, some 10 minutes.
#   tests/bare.sh trixie [COMMAND]      # COMMAND instead: "make test", for example
set -euo pipefail
suite=${1:?Name a suite: bookworm or trixie}
command=${2:-time make demo && time make demo}
tree=$(cd "$(dirname "$0")/.." && pwd)
if [ "${MIRRORD_BARE:-}" = "" ]; then
    root=$(mktemp -d /var/tmp/mirrord-bare-XXXXXX)
    chmod 755 "$root"
    trap 'rm -rf --one-file-system "$root"' EXIT
    debootstrap --variant=minbase "$suite" "$root" >/dev/null
    # Mounts and processes end with the namespaces, also services that packages start. (One test
    # fails there: tests/pausers/test_unfreezable.py looks for a thread of the kernel.)
    MIRRORD_BARE=$root unshare --mount --pid --fork --propagation private "$0" "$suite" "$command"
    exit
fi
root=$MIRRORD_BARE
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
for folder in tmp run; do mount -t tmpfs -o mode=1777 tmpfs "$root/$folder"; done
# How this machine reaches the archives.
cp /etc/resolv.conf /etc/hosts "$root/etc/"
mkdir -p "$root/usr/local/share/ca-certificates"
cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
inside() {
    chroot "$root" /usr/bin/env -i HOME=/root TERM=dumb \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c "$1"
}
inside 'apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y git make \
    ca-certificates && update-ca-certificates' >"$root/var/log/bare.log" 2>&1
git clone -q --no-local "$tree" "$root/root/mirrord"
chown -R root:root "$root/root/mirrord"
inside "cd /root/mirrord && $command && .venv/bin/mirrord --version"
