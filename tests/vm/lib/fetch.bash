# Fetches stock Debian kernels, and where it is needed a newer qemu, into the
# cache through apt directories of our own: the machine's package lists stay as
# they are, and nothing is installed. Sourced by prepare.
# shellcheck shell=bash

# The suites to look in. Later ones are looked at too, the newest kernel wins.
vm_suites=${UBLKD_VM_SUITES:-trixie trixie-backports}

# The mirror: the one that the machine's own apt uses for Debian.
debian_mirror() {
    if [[ -n ${UBLKD_VM_DEBIAN_MIRROR:-} ]]; then
        printf '%s\n' "$UBLKD_VM_DEBIAN_MIRROR"
        return
    fi
    # shellcheck disable=SC2016 # apt fills these in
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        sed -n 's/^Debian|Debian|//p' | head -n1
}

debian_keyring() {
    local ring
    for ring in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
        [[ -e $ring ]] && { printf '%s\n' "$ring"; return; }
    done
    return 1
}

# private_apt DIR SUITE…: lays out apt's private directories and reads the lists
# of these suites; sets apt_options.
private_apt() {
    local dir=$1 mirror ring suite
    shift
    mirror=$(debian_mirror)
    if [[ -z $mirror ]]; then # the lists may never have been fetched here
        logged as_root apt-get -qq update || true
        mirror=$(debian_mirror)
    fi
    if [[ -z $mirror ]]; then
        say "this machine's apt names no Debian mirror, and other distributions' kernels are not used here"
        say "set UBLKD_VM_DEBIAN_MIRROR to the URL of a Debian mirror, or give --kernel PATH"
        return 1
    fi
    if ! ring=$(debian_keyring); then
        logged as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
            install --no-install-recommends debian-archive-keyring || true
        ring=$(debian_keyring) || { say "no keyring of Debian's archive: install debian-archive-keyring"; return 1; }
    fi
    mkdir -p -- "$dir/lists/partial" "$dir/cache/archives/partial"
    for suite in "$@"; do
        printf 'deb [arch=amd64 signed-by=%s] %s %s main\n' "$ring" "$mirror" "$suite"
    done >"$dir/sources.list"
    apt_options=(
        -o "Dir::Etc::SourceList=$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$dir/lists" -o "Dir::Cache=$dir/cache"
        -o "APT::Architecture=amd64" -o "APT::Sandbox::User=" -o Acquire::Languages=none
        -o Acquire::Retries=3
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
        -o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false
    )
    logged apt-get -qq "${apt_options[@]}" update || { say "cannot read the package lists"; return 1; }
}

# newest_offered SERIES: the newest release that the lists have.
newest_offered() {
    apt-cache "${apt_options[@]}" pkgnames "linux-image-$1." |
        sed -n 's/^linux-image-\([0-9.]*+deb[0-9]*-cloud-amd64\)$/\1/p' | sort -V | tail -n1
}

# unpack_image TREE: the uncompressed image out of TREE/vmlinuz. qemu starts it
# without the decompressor, which is slow under emulation.
unpack_image() {
    local image=$1/vmlinuz sectors offset length
    sectors=$(od -An -tu1 -j497 -N1 "$image")
    offset=$(od -An -tu4 -j584 -N4 "$image")
    length=$(od -An -tu4 -j588 -N4 "$image")
    tail -c "+$(((sectors + 1) * 512 + offset + 1))" "$image" | head -c $((length - 4)) |
        zstd -dcq >"$1/vmlinux" 2>/dev/null || true
    [[ $(head -c4 "$1/vmlinux" | tr -d '\177') == ELF ]] || rm -f "$1/vmlinux"
}

# fetch_release RELEASE DIR: downloads it and lays it out as a cache entry.
fetch_release() {
    local release=$1 dir=$2 tree=$2/tree name
    local packages=("linux-image-$release")
    for name in binary modules base; do # newer kernels are split up
        apt-cache "${apt_options[@]}" show "linux-$name-$release" >/dev/null 2>&1 &&
            packages+=("linux-$name-$release")
    done
    mkdir -p -- "$dir/debs" "$tree/usr/lib/modules"
    (cd -- "$dir/debs" && logged apt-get -qq "${apt_options[@]}" download "${packages[@]}") || return 1
    for name in "$dir"/debs/*.deb; do
        dpkg-deb -x "$name" "$dir/unpacked" || return 1
    done
    for name in "$dir"/unpacked/{usr/,}lib/modules; do
        [[ -d $name/$release && ! -L $name ]] && mv -- "$name/$release" "$tree/usr/lib/modules/"
    done
    [[ -d $tree/usr/lib/modules/$release ]] || { say "$release: no modules in its packages"; return 1; }
    ln -s usr/lib "$tree/lib"
    for name in "$dir/unpacked/boot/vmlinuz-$release" "$tree/usr/lib/modules/$release/vmlinuz"; do
        [[ -f $name ]] && mv -- "$name" "$tree/vmlinuz"
    done
    for name in "$dir/unpacked/boot/config-$release" "$tree/usr/lib/modules/$release/config"; do
        [[ -f $name ]] && mv -- "$name" "$tree/config"
    done
    [[ -f $tree/vmlinuz ]] || { say "$release: no image in its packages"; return 1; }
    unpack_image "$tree"
    "$(PATH=$PATH:/usr/sbin:/sbin type -P depmod)" -b "$tree" "$release" || return 1
    : >"$tree/ready"
}

# fetch_kernel SERIES: the newest of the series into the cache, once, however
# many ask for it. What is cached stands in for what cannot be downloaded.
fetch_kernel() {
    local series=$1
    mkdir -p -- "$vm_cache/kernels"
    (
        flock 9
        ((update)) || ! newest_cached "$series" >/dev/null || exit 0
        work=$(mktemp -d -- "$vm_cache/fetch.XXXXXX")
        trap 'rm -rf -- "$work"' EXIT
        if fetch_into "$series" "$work"; then exit 0; fi
        newest_cached "$series" >/dev/null || fail 2 "no kernel $series to be had"
        say "using the cached kernel $(basename -- "$(newest_cached "$series")")"
    ) 9>"$vm_cache/kernels.lock"
}

fetch_into() {
    local series=$1 work=$2 release
    # shellcheck disable=SC2086 # a list of words
    private_apt "$work" $vm_suites || return 1
    release=$(newest_offered "$series")
    [[ -n $release ]] || { say "no Debian kernel of series $series in: $vm_suites"; return 1; }
    [[ ! -e $vm_cache/kernels/$release/ready ]] || return 0
    say "fetching kernel $release"
    fetch_release "$release" "$work" || { say "cannot fetch kernel $release"; return 1; }
    rm -rf -- "$vm_cache/kernels/$release"
    mv -- "$work/tree" "$vm_cache/kernels/$release"
}

# fetch_qemu: before version 10 qemu's emulation of several processors now and
# then runs code that the kernel has already patched ("Oops: int3" at boot). On
# a Debian that old the newer qemu of its backports goes into the cache; where
# there is none, the installed one has to do.
fetch_qemu() {
    local dir=$vm_cache/qemu codename version
    if settled_qemu; then return; fi
    mkdir -p -- "$dir"
    (
        flock 9
        if settled_qemu; then exit 0; fi
        version=$(qemu-system-x86_64 --version | sed -n 's/^QEMU emulator version \([0-9]*\).*/\1/p')
        # shellcheck source=/dev/null
        codename=$(. /etc/os-release && [[ $ID == debian ]] && printf '%s\n' "$VERSION_CODENAME" || true)
        rm -f -- "$dir/qemu-system-x86_64"
        if ((${version:-0} < 10)) && [[ -n $codename ]]; then
            work=$(mktemp -d -- "$vm_cache/fetch.XXXXXX")
            trap 'rm -rf -- "$work"' EXIT
            unpack_qemu "$codename" "$work" || say "no newer qemu to be had: using the installed one"
        fi
        qemu_key >"$dir/settled"
    ) 9>"$vm_cache/qemu.lock"
}

unpack_qemu() {
    local codename=$1 work=$2 binary=$2/unpacked/usr/bin/qemu-system-x86_64
    private_apt "$work" "$codename" "$codename-backports" || return 1
    mkdir -p -- "$work/debs"
    say "fetching a newer qemu"
    (cd -- "$work/debs" && logged apt-get -qq "${apt_options[@]}" download "qemu-system-x86/$codename-backports") || return 1
    dpkg-deb -x "$work"/debs/*.deb "$work/unpacked" || return 1
    "$binary" --version >/dev/null || return 1
    mv -f -- "$binary" "$vm_cache/qemu/qemu-system-x86_64"
}
