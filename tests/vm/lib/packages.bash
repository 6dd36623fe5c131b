# Installs the programs that the virtual machine and the tests in it need, on
# Debian and Ubuntu. Sourced by prepare.
# shellcheck shell=bash

# Program and the package that brings it. The programs of the guest come from
# the host too, since the guest's root is the host's.
vm_programs=(
    qemu-system-x86_64=qemu-system-x86
    modprobe=kmod
    xz=xz-utils
    zstd=zstd
    flock=util-linux
    setpriv=util-linux
    ip=iproute2
    ps=procps
    fio=fio
    mkfs.ext4=e2fsprogs
    mkfs.xfs=xfsprogs
)

# programs_missing: names the packages to install, one a line.
programs_missing() {
    local pair
    for pair in "${vm_programs[@]}"; do
        type -P "${pair%%=*}" >/dev/null || printf '%s\n' "${pair#*=}"
    done
    if [[ -z $(find_virtiofsd) ]]; then
        # Part of qemu-system-common on Debian 12, a package of its own later.
        printf '%s\n' virtiofsd
    fi
}

# logged COMMAND…: its words are shown only when it fails.
logged() {
    "$@" >"$vm_cache/install.log" 2>&1 </dev/null && return
    tail -n 20 -- "$vm_cache/install.log" >&2
    return 1
}

install_programs() {
    local PATH=$PATH:/usr/sbin:/sbin missing
    mapfile -t missing < <(programs_missing | sort -u)
    ((${#missing[@]})) || return 0
    type -P apt-get >/dev/null ||
        fail 2 "no apt-get here: install ${missing[*]} by hand"
    mkdir -p -- "$vm_cache"
    (
        flock 9
        mapfile -t missing < <(programs_missing | sort -u)
        ((${#missing[@]})) || exit 0
        say "installing ${missing[*]}"
        logged as_root apt-get -qq -o DPkg::Lock::Timeout=300 update ||
            say "apt-get update failed; going on with the lists that are there"
        # The package of its own does not exist everywhere; where it does not,
        # qemu's packages bring the program.
        apt-cache show virtiofsd >/dev/null 2>&1 ||
            mapfile -t missing < <(printf '%s\n' "${missing[@]}" | grep -vx virtiofsd)
        ((${#missing[@]})) || missing=(qemu-system-common)
        logged as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
            -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}" ||
            fail 2 "cannot install ${missing[*]}"
    ) 9>"$vm_cache/packages.lock"
    mapfile -t missing < <(programs_missing | sort -u)
    ((${#missing[@]} == 0)) || fail 2 "still missing after the installation: ${missing[*]}"
}
