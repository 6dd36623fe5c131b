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
