# For users who are not root: run starts itself again through sudo. A user cannot
# signal a process of root's, so a pipe ties the two: when the user's one ends,
# by whatever means, the other sees its standard input close. Sourced by run.
# shellcheck shell=bash

run_with_sudo() {
    local leash inner status=0
    exec {leash}> >(exec sudo -E -- env "PATH=$PATH" "HOME=$HOME" "UBLKD_VM_CACHE=$vm_cache" \
        ${LD_LIBRARY_PATH+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"} UBLKD_VM_LEASH=1 "$vm_room/run" "$@")
    inner=$!
    trap 'exec {leash}>&-; wait "$inner" || true; exit 143' TERM INT HUP
    wait "$inner" || status=$?
    exit "$status"
}

# take_leash: after make_workdir; ends us when the user's run has ended.
take_leash() {
    [[ -n ${UBLKD_VM_LEASH:-} ]] || return 0
    unset UBLKD_VM_LEASH
    (
        exec {reaper_pipe}>&-
        while read -r _; do :; done
        kill -TERM $$
    ) <&0 &
    leash_holder=$!
}
