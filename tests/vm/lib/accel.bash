# Chooses between KVM and emulation. A /dev/kvm is no promise: a trivial guest
# is started on it once, and the answer is kept for this boot of the host and
# this kernel. UBLKD_VM_ACCEL=kvm|tcg overrides it. Sourced by run.
# shellcheck shell=bash

choose_accel() {
    local answer lock
    accel=${UBLKD_VM_ACCEL:-}
    if ((opt_icount)); then accel=tcg; fi # counting is emulation's
    case $accel in
        kvm | tcg) return ;;
        '') ;;
        *) fail 2 "UBLKD_VM_ACCEL is kvm or tcg, not '$accel'" ;;
    esac
    accel=tcg
    [[ -w /dev/kvm ]] || return 0
    mkdir -p -- "$vm_cache/accel"
    answer=$vm_cache/accel/$(</proc/sys/kernel/random/boot_id).$kernel_release
    if [[ ! -s $answer ]]; then
        exec {lock}>"$vm_cache/accel/lock"
        flock "$lock"
        if [[ ! -s $answer ]]; then # another one may have tried meanwhile
            try_kvm >"$answer.new"
            mv -f -- "$answer.new" "$answer"
        fi
        exec {lock}>&-
    fi
    accel=$(<"$answer")
}

try_kvm() {
    if UBLKD_VM_ACCEL=kvm "$vm_room/run" --kernel "$opt_kernel" --timeout 20 -- true </dev/null >/dev/null 2>&1; then
        echo kvm
    else
        echo tcg
    fi
}
