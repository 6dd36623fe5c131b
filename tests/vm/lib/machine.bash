# The machine: a working folder, virtiofsd for each folder that the guest sees,
# qemu, and the end of them all, whatever happens to run. Sourced by run.
# shellcheck shell=bash

children=()
boot_limit=120

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

# serve TAG FOLDER CACHE [OPTION]…: a virtiofsd for a folder.
serve() {
    local tag=$1 folder=$2 cache=$3
    local socket=$work/$tag.sock options
    options=(--socket-path="$socket" -o "source=$folder" -o sandbox=chroot -o "cache=$cache")
    case $virtiofsd in
        /usr/lib/qemu/*) ;;                                   # the C one
        *) options=(--socket-path="$socket" --shared-dir "$folder" --sandbox chroot --cache "$cache") ;;
    esac
    if [[ $tag == share ]]; then
        case $virtiofsd in
            /usr/lib/qemu/*) options+=(-o allow_direct_io) ;;
            *) options+=(--allow-direct-io) ;;
        esac
    fi
    spawn "$virtiofsd" "${options[@]}" >"$work/$tag.log" 2>&1
    machine+=(
        -chardev "socket,id=$tag,path=$socket"
        -device "vhost-user-fs-pci,chardev=$tag,tag=$tag"
    )
    sockets+=("$socket")
}

wait_for_sockets() {
    local socket tries
    for socket in "${sockets[@]}"; do
        for ((tries = 0; ; tries++)); do
            [[ ! -S $socket ]] || break
            ((tries < 500)) || fail 125 "virtiofsd did not come up: $(tail -n3 -- "${socket%.sock}.log")"
            nap 0.02
        done
    done
}

nap() { read -r -t "$1" -u "$nap_fd" || true; }

disks() {
    local disk path number=0
    for disk in ${opt_disks[@]+"${opt_disks[@]}"}; do
        path=${disk#*:}
        if [[ $disk == size:* ]]; then
            path=$work/disk$number.raw
            truncate -s "${disk#*:}" -- "$path" || fail 2 "--disk: not a size: ${disk#*:}"
        fi
        machine+=(
            -drive "if=none,id=disk$number,format=raw,discard=unmap,file=${path//,/,,}"
            -device "virtio-blk-pci,drive=disk$number"
        )
        number=$((number + 1))
    done
}

# Sets append. What only costs time at boot is off; what changes how the driver
# waits (RCU's settings, say) stays as it is in a stock kernel.
kernel_arguments() {
    local mhz
    append="console=ttyS0 panic=-1 quiet rootfstype=virtiofs root=rootfs ro init=\"$vm_room/guest/init\""
    append+=" log_buf_len=1M rcupdate.rcu_cpu_stall_timeout=60 workqueue.watchdog_thresh=60"
    append+=" mitigations=off audit=0 apparmor=0 cryptomgr.notests"
    if [[ $accel == tcg ]]; then # clocks that are never to be measured: a busy host spoils that
        mhz=$(sed -n 's/^bogomips[^:]*: *\([0-9]*\).*/\1/p;T;q' /proc/cpuinfo)
        ((opt_icount == 0)) || mhz=2000
        append+=" tsc=reliable no_timer_check lpj=$((${mhz:-5000} * 2000))"
    fi
    append+=" ${UBLKD_VM_APPEND:-}"
}

start_machine() {
    local PATH=$PATH:/usr/sbin:/sbin virtiofsd machine=() sockets=() append cpu accelerator
    virtiofsd=$(find_virtiofsd)
    find_qemu
    serve rootfs / always
    serve ctl "$ctl" auto
    serve share "${opt_share:-$work/share}" auto
    disks
    case $accel in
        kvm) accelerator=(-accel kvm) cpu=host ;;
        *) accelerator=(-accel tcg,thread=multi) cpu=max ;;
    esac
    if ((opt_icount)); then
        accelerator=(-accel tcg,thread=single -icount shift=0,sleep=on)
    fi
    kernel_arguments
    # A word from the guest wakes us up, a word to it asks who waits for what.
    mkfifo "$work/word.out" "$work/word.in"
    exec {both}<>"$work/word.out"
    exec {word}<"$work/word.out" {word_out}>"$work/word.out" {both}>&-
    wait_for_sockets
    spawn "${qemu_program[@]}" "${accelerator[@]}" -cpu "$cpu" -smp "$opt_cpus" -m "$opt_memory" \
        -nodefaults -no-user-config -display none -vga none -no-reboot \
        -object "memory-backend-memfd,id=mem,size=${opt_memory}M,share=on" -numa node,memdev=mem \
        -chardev "file,id=console,path=$console" -serial chardev:console \
        -chardev "pipe,id=word,path=$work/word" -serial chardev:word \
        -kernel "$kernel_image" -append "$append" "${machine[@]}" \
        {word}<&- >"$work/qemu.log" 2>&1
    exec {word_out}>&- # from now on qemu alone holds the writing end
    qemu=${children[-1]}
    if [[ -n $opt_pidfile ]]; then
        echo "$qemu" >"$opt_pidfile.new" && mv -f -- "$opt_pidfile.new" "$opt_pidfile"
    fi
}

# The guest's output as it comes: files on the host, followed until qemu ends.
follow_output() {
    tail -c +1 -f -s 0.1 --pid="$qemu" -- "$ctl/stdout" {reaper_pipe}>&- {word}<&- </dev/null &
    tail_out=$!
    tail -c +1 -f -s 0.1 --pid="$qemu" -- "$ctl/stderr" {reaper_pipe}>&- {word}<&- </dev/null >&2 &
    tail_err=$!
    printf '%s\n' "$tail_out" "$tail_err" >>"$work/pids"
}

# wait_for WHAT: until the guest has said so (it writes the file WHAT and then a
# line), sets outcome: so, or died or late.
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
                echo dump >"$work/word.in"
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
