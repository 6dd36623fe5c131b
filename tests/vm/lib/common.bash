# Shared by the host-side scripts of the virtual-machine room: messages, the
# cache's place, and the words that name a kernel. Sourced, never run.
# shellcheck shell=bash

vm_room=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
vm_cache=${UBLKD_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/ublkd-vm}
vm_default_kernel=7.3

say() { printf 'vm: %s\n' "$*" >&2; }

# fail STATUS WORDS…: say it and leave with that status.
fail() {
    local status=$1
    shift
    say "$*"
    exit "$status"
}

# as_root COMMAND…: with sudo where we are not root already.
as_root() {
    if ((EUID == 0)); then "$@"; else sudo -- "$@"; fi
}

# Where the virtiofsd of this distribution is; empty when there is none.
find_virtiofsd() {
    local path
    for path in /usr/libexec/virtiofsd /usr/lib/qemu/virtiofsd /usr/lib/virtiofsd; do
        [[ -x $path ]] && { printf '%s\n' "$path"; return; }
    done
    command -v virtiofsd || true
}

# What tells one installed qemu from another.
qemu_key() { stat -L -c '%s %Y' -- "$(type -P qemu-system-x86_64)"; }

# settled_qemu: true when prepare has looked at the one that is installed.
settled_qemu() {
    [[ -s $vm_cache/qemu/settled && $(<"$vm_cache/qemu/settled") == "$(qemu_key)" ]]
}

# The qemu to use: the cache's where prepare had to fetch one (its firmware is
# the installed one's). Sets the array qemu_program.
find_qemu() {
    local cached=$vm_cache/qemu/qemu-system-x86_64 installed
    installed=$(type -P qemu-system-x86_64) || fail 2 "no qemu-system-x86_64"
    if [[ -n ${UBLKD_VM_QEMU:-} ]]; then
        qemu_program=("$UBLKD_VM_QEMU")
    elif [[ -x $cached ]] && settled_qemu; then
        qemu_program=("$cached" -L /usr/share/qemu -L /usr/share/seabios)
    else
        qemu_program=("$installed")
    fi
}
