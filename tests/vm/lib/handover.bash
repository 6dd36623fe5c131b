# Writes what the guest is to do into the folder that it finds at /run/vm:
# arguments, environment, folder, settings. Sourced by run.
# shellcheck shell=bash

# Carried into the guest: exact names and prefixes.
carried='^(HOME|PATH|USER|LOGNAME|SHELL|TERM|LANG|TZ|CI|NO_COLOR|LD_LIBRARY_PATH|LC_.*|CARGO.*|RUST.*|UBLKD.*|INSTA_.*|PROPTEST_.*|__CARGO_.*)$'

carried_environment() {
    local name
    while IFS= read -r name; do
        if [[ $name =~ $carried && $name != UBLKD_VM_* ]]; then
            printf '%s=%s\0' "$name" "${!name}"
        fi
    done < <(compgen -e)
    printf 'PATH=%s\0' "$PATH:/usr/sbin:/usr/bin:/sbin:/bin"
    printf 'TMPDIR=/tmp\0UBLKD_VM=1\0'
    if [[ -n $kernel_tree ]]; then # a plain modprobe finds the modules, too
        printf 'MODPROBE_OPTIONS=-d %s\0' "$kernel_tree"
    fi
    for name in ${opt_env[@]+"${opt_env[@]}"}; do
        if [[ $name == *=* ]]; then
            printf '%s\0' "$name"
        elif [[ -v $name ]]; then
            printf '%s=%s\0' "$name" "${!name}"
        fi
    done
}

# Folders that must be seen even where the guest has fresh ones (/tmp, /run).
needed_folders() {
    local path program
    program=$(type -P -- "${command[0]}" || printf /)
    for path in "$vm_room" "$vm_room/../.." "$PWD" "$kernel_tree" "${program%/*}" \
        "${HOME:-}" "${CARGO_HOME:-}" "${RUSTUP_HOME:-}" "${CARGO_TARGET_DIR:-}"; do
        if [[ -n $path && -d $path ]]; then printf '%s\0' "$path" "$(realpath -- "$path")"; fi
    done
}

settings() {
    local modules=ublk_drv options=
    if ((${#opt_disks[@]})); then modules+=' virtio_blk'; fi
    if [[ -n $kernel_tree ]] && modinfo -b "$kernel_tree" -k "$kernel_release" -F parm ublk_drv 2>/dev/null |
        grep -q '^ublks_max:'; then
        options=ublks_max=65536
    fi
    printf '%s=%q\n' vm_module_tree "$kernel_tree" vm_modules "$modules" \
        vm_ublk_options "$options" vm_disks "${#opt_disks[@]}"
}

hand_over() {
    local PATH=$PATH:/usr/sbin:/sbin
    printf '%s\0' "${command[@]}" >"$ctl/argv"
    carried_environment >"$ctl/env"
    printf '%s\0' "$PWD" >"$ctl/cwd"
    needed_folders >"$ctl/needed"
    settings >"$ctl/settings"
    : >"$ctl/stdout"
    : >"$ctl/stderr"
    mkdir "$ctl/dev" # links that devtmpfs lacks
    ln -s /proc/self/fd "$ctl/dev/fd"
    ln -s /proc/self/fd/0 "$ctl/dev/stdin"
    ln -s /proc/self/fd/1 "$ctl/dev/stdout"
    ln -s /proc/self/fd/2 "$ctl/dev/stderr"
}
