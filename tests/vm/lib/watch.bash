# Follows a guest from its boot to its end: boots another one where the first
# does not come up, streams the output, minds the time limit. Sourced by run.
# shellcheck shell=bash

boot_limit=120

# The guest's output as it comes: files on the host, followed until qemu ends.
follow_output() {
    tail -c +1 -f -s 0.1 --pid="$qemu" -- "$ctl/stdout" {reaper_pipe}>&- {word}<&- </dev/null &
    tail_out=$!
    tail -c +1 -f -s 0.1 --pid="$qemu" -- "$ctl/stderr" {reaper_pipe}>&- {word}<&- </dev/null >&2 &
    tail_err=$!
    printf '%s\n' "$tail_out" "$tail_err" >>"$work/pids"
}

# wait_for WHAT DEADLINE: until the guest has said so (it writes the file WHAT and
# then a line); sets outcome: so, died or late.
wait_for() {
    local deadline=$2 said
    while :; do
        # The line only wakes us up, the file tells: half a line may have come.
        if read -r -t 0.5 -u "$word" said; then :; elif (($? <= 128)); then
            outcome=died # the writing end is closed: no qemu any more
            [[ ! -s $ctl/$1 ]] || outcome=so
            return
        fi
        if [[ -s $ctl/$1 ]]; then outcome=so; return; fi
        if ((SECONDS >= deadline)); then outcome=late; return; fi
        # KVM stops the guest for good, without a word, where it cannot run it.
        if [[ $accel == kvm ]] && grep -q 'KVM internal error' "$work/qemu.log"; then
            outcome=late
            return
        fi
    done
}

# run_machine: boots the guest, runs the command, sets outcome: done, died or
# late. A guest that does not get as far as the command has touched nothing, so
# another one is tried: under emulation one boot in a hundred or so fails, since
# the emulator may run stale code after the kernel has patched itself.
run_machine() {
    local attempt deadline=$((SECONDS + opt_timeout)) boot_deadline
    for attempt in 1 2 3; do
        start_machine
        boot_deadline=$((SECONDS + boot_limit))
        ((boot_deadline <= deadline)) || boot_deadline=$deadline
        wait_for started "$boot_deadline"
        [[ $outcome == so || $SECONDS -ge $deadline || $accel == kvm ]] && break
        stop_machine
        ((qemu_status != 137 && attempt < 3)) || return 0 # 137: someone pulled the plug
        note_failed_boot # standard error is the command's: nothing is said there
    done
    if [[ $outcome == so ]]; then
        follow_output
        wait_for status "$deadline"
        case $outcome in
            so) outcome=done ;;
            late)
                echo dump 1<>"$work/word.in" # <> so that a dead qemu does not block us
                wait_for dumped $((SECONDS + 10))
                outcome=late
                ;;
        esac
    fi
    stop_machine
}

# note_failed_boot: into a file of the cache that keeps the last few.
note_failed_boot() {
    local log=$vm_cache/failed-boots.log
    {
        printf '== %(%F %T)T %s %s %s (%s)\n' -1 "$kernel_release" "$accel" "${qemu_program[0]}" "$outcome"
        tr -d '\r' <"$console" | tail -n 60
    } >>"$log" 2>/dev/null || true
    if (($(stat -c %s -- "$log") > 1000000)); then mv -f -- "$log" "$log.old"; fi
}

# stop_machine: the guest has done its part; everything is on the host by now.
stop_machine() {
    local child
    qemu_status=0
    if [[ $outcome == died ]]; then
        wait "$qemu" 2>/dev/null || qemu_status=$?
    else
        kill -KILL "$qemu" 2>/dev/null || true
        wait "$qemu" 2>/dev/null || true
    fi
    if [[ -n ${tail_out:-} ]]; then wait "$tail_out" "$tail_err" 2>/dev/null || true; fi
    for child in "${children[@]}"; do kill -KILL "$child" 2>/dev/null || true; done
    for child in "${children[@]}"; do wait "$child" 2>/dev/null || true; done
    children=()
    rm -f -- "$work"/*.sock "$work"/word.*
    exec {word}<&-
}
