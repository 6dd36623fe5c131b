# Finds a kernel: a series ("7.3") means the newest one of it in the cache, a
# path means that image. Sets kernel_release, kernel_image and kernel_tree (the
# folder with lib/modules/RELEASE below it; empty when there are no modules).
# Sourced by run and prepare.
# shellcheck shell=bash

# newest_cached SERIES: the folder of the newest complete kernel of a series.
newest_cached() {
    local dir newest=
    while IFS= read -r dir; do
        [[ -e $dir/ready ]] && newest=$dir
    done < <(compgen -G "$vm_cache/kernels/$1.*" | sort -V)
    [[ -n $newest ]] && printf '%s\n' "$newest"
}

is_series() { [[ $1 =~ ^[0-9]+\.[0-9]+$ ]]; }

# The release that a bzImage names in its header.
release_of_image() {
    local at
    at=$(od -An -tu2 -j526 -N2 -- "$1") || return 1
    dd if="$1" bs=1 skip=$((at + 512)) count=128 status=none | tr '\0' ' ' | cut -d' ' -f1
}

# shellcheck disable=SC2034 # set for the sourcing script
find_kernel() {
    local dir
    kernel_tree=
    if is_series "$1"; then
        dir=$(newest_cached "$1") || return 1
        kernel_tree=$dir
        kernel_release=${dir##*/}
        kernel_image=$dir/vmlinux
        [[ -s $kernel_image ]] || kernel_image=$dir/vmlinuz
        return
    fi
    if [[ -e $1/ready ]]; then # a folder laid out like the cache's
        kernel_tree=$(realpath -- "$1")
        kernel_release=${kernel_tree##*/}
        kernel_image=$kernel_tree/vmlinuz
        return
    fi
    [[ -f $1 ]] || fail 2 "no such kernel: $1 (a series such as 7.3, or a path)"
    kernel_image=$(realpath -- "$1")
    kernel_release=$(release_of_image "$kernel_image")
    # Modules: where we are told, beside the image, or the host's own.
    for dir in "${UBLKD_VM_MODULES:-}" "${kernel_image%/*}" "${kernel_image%/*/*}" /; do
        [[ -n $dir && -d $dir/lib/modules/$kernel_release ]] && { kernel_tree=$dir; break; }
    done
}
