# The working folder of a run and its processes, and the end of them all,
# whatever happens to run. Sourced by run.
# shellcheck shell=bash

children=()

# make_workdir: a short path, since sockets have no long ones. The reaper sees
# its pipe close when this script ends, even by kill -9, and clears up then.
make_workdir() {
    local base=${TMPDIR:-/tmp}
    ((${#base} < 70)) || base=/tmp
    work=$(mktemp -d -- "$base/ublkd-vm.XXXXXX")
    ctl=$work/ctl
    console=${opt_console:-$work/console}
    mkdir "$ctl" "$work/share"
    : >"$work/pids"
    exec {nap_fd}<> <(:)
    exec {reaper_pipe}> >(exec setsid "$vm_room/lib/reaper" "$work" >/dev/null 2>&1)
    trap 'end_machine' EXIT
    trap 'exit 143' TERM
    trap 'exit 130' INT
    trap 'exit 129' HUP
}

# spawn COMMAND…: in the background, known to the reaper.
spawn() {
    # pdeathsig: gone with us even if the reaper is ended as well.
    exec setpriv --pdeathsig KILL -- "$@" {reaper_pipe}>&- </dev/null &
    children+=($!)
    echo $! >>"$work/pids"
}

nap() { read -r -t "$1" -u "$nap_fd" || true; }

# end_machine: at the end of run, an early one too. (wait must be told whom to
# wait for: the reaper only leaves after us.)
end_machine() {
    local child ours=(${children[@]+"${children[@]}"} ${tail_out:-} ${tail_err:-} ${leash_holder:-})
    trap '' TERM INT HUP
    trap - EXIT
    for child in ${ours[@]+"${ours[@]}"}; do kill -KILL "$child" 2>/dev/null || true; done
    for child in ${ours[@]+"${ours[@]}"}; do wait "$child" 2>/dev/null || true; done
    rm -rf -- "$work"
}
