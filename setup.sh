#!/usr/bin/env bash
# Installs what mirrord needs and is missing (Debian 12 or 13, as root or with sudo): Debian
# packages, Rust, the virtual environment in .venv with mirrord in it. Quick when all is there.
# With the word `check` also what `make check` needs: rustfmt and clippy.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else fail "these Debian packages are missing: $missing" \
              "Run as root: apt-get install $missing"; fi
}

# 1. Debian packages
missing=
need() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed' || missing="$missing $1"; }
for package in btrfs-progs libbtrfsutil-dev gcc libc6-dev pkg-config rsync kmod util-linux curl \
    openssh-server openssh-client iproute2; do need "$package"; done
# For names in every locale.
need locales
# A browser, in which the reports of the analysis are looked at by tests.
need chromium
# For the virtual machine in which OpenZFS is tested (tests/zfsvm; QEMU itself goes into the cache).
for package in debootstrap debian-archive-keyring e2fsprogs; do need "$package"; done
# For live mirrors: NBD clients, disks that fail, and a database on a served image.
for package in libnbd-bin nbdkit qemu-utils qemu-system-common fio openssl postgresql; do need "$package"; done

python=
for candidate in python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null &&
       "$candidate" -c 'import sys, venv, ensurepip, sqlite3; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$(command -v "$candidate"); break
    fi
done
[ -n "$python" ] || for package in python3 python3-venv python3-dev; do need "$package"; done
if [ "$python" = /usr/bin/python3 ]; then need python3-dev; fi

# Rust 1.85 or newer from PATH, else Debian's: `cargo` on 13, `cargo-web` on 12.
cargo_is_recent() {
    local version
    version=$("$1" --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p') || return 1
    [ -n "$version" ] && [ "$version" -ge 85 ]
}
find_cargo() {
    local candidate
    for candidate in "$(command -v cargo || true)" "${HOME:-/root}/.cargo/bin/cargo" /usr/bin/cargo; do
        if [ -x "$candidate" ] && cargo_is_recent "$candidate"; then echo "$candidate"; return; fi
    done
}
cargo=$(find_cargo)
if [ -z "$cargo" ]; then
    . /etc/os-release
    if [ "${VERSION_ID:-}" = 12 ]; then for package in rustc-web cargo-web; do need "$package"; done
    else for package in rustc cargo; do need "$package"; done; fi
fi

if [ "${1:-}" = check ] && ! { [ -n "$cargo" ] && PATH="$(dirname "$cargo"):$PATH" &&
        cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
    . /etc/os-release
    if [ "${VERSION_ID:-}" = 12 ]; then for package in rustfmt-web rust-web-clippy; do need "$package"; done
    else for package in rustfmt rust-clippy; do need "$package"; done; fi
fi

if [ -n "$missing" ]; then
    command -v apt-get >/dev/null || fail "this is not a Debian system" \
        "Install the equivalents of:$missing"
    say "installing Debian packages:$missing"
    case "$missing" in *openssh-server*)
        # It is here for a server of the tests' own: the machine shall not begin to listen by it.
        if command -v systemctl >/dev/null; then
            say "openssh-server's own service stays off ('systemctl unmask ssh' lets it run)"
            as_root systemctl -q mask ssh.service ssh.socket || true
        fi ;;
    esac
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q update >/dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
        $missing >/dev/null
fi
[ -n "$python" ] || python=$(command -v python3)
[ -n "$cargo" ] || cargo=$(find_cargo)
[ -n "$cargo" ] || fail "no cargo of version 1.85 or newer was found" \
    "Install Rust (rustup, or Debian's cargo-web) and put cargo on PATH."

# 2. The virtual environment
stamp=.venv/.mirrord-setup
wanted=$(cat setup.cfg pyproject.toml setup.sh native/Cargo.lock native/*/Cargo.toml \
    native/*/src/*.rs native/*/src/*/*.rs mirrord/__init__.py | sha256sum | cut -d' ' -f1)
# The module and the programs are in the tree, so `git clean` may have removed them.
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ] ||
    ! compgen -G "mirrord/_native*.so" > /dev/null || [ ! -x mirrord/_receive ] ||
    [ ! -x mirrord/_live ]; then
    [ -x .venv/bin/python ] || { say "making .venv with $python"; "$python" -m venv .venv; }
    printf '#!/bin/sh\nPATH="%s:$PATH"\nexport PATH\nexec "$@"\n' "$(dirname "$cargo")" \
        > .venv/bin/with-cargo
    chmod +x .venv/bin/with-cargo
    say "installing mirrord and its Python packages into .venv (a minute or two the first time)"
    # (`compat`: the repository on the path, instead of an import hook that slows each start.)
    .venv/bin/with-cargo .venv/bin/python -m pip -q --disable-pip-version-check install \
        --config-settings editable_mode=compat \
        --use-pep517 --editable '.[btrfs,analysis,cluster,dev]'
    echo "$wanted" > "$stamp"
fi
