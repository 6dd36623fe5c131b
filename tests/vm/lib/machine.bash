# The machine: a working folder, virtiofsd for each folder that the guest sees,
# qemu, and the end of them all, whatever happens to run. Sourced by run.
# shellcheck shell=bash

children=()

# make_workdir: a short path, since sockets have no long ones. The reaper sees
# its pipe close when this script ends, even by kill -9, and clears up then.
make_workdir() {
    local base=${TMPDIR:-/tmp}
    ((${#base} < 70)) || base=/tmp
    work=$(mktemp -d -- "$base/ublkd-vm.XXXXXX")
    ctl=$work/ctl
    mkdir "$ctl" "$work/share"
    : >"$work/pids"
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

start_machine() {
    local PATH=$PATH:/usr/sbin:/sbin virtiofsd machine=() sockets=() append cpu accelerator
    virtiofsd=$(find_virtiofsd)
    exec {nap_fd}<> <(:)
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
    append="console=ttyS0 panic=-1 quiet rootfstype=virtiofs root=rootfs ro init=\"$vm_room/guest/init\""
    append+=" log_buf_len=1M rcupdate.rcu_cpu_stall_timeout=60 workqueue.watchdog_thresh=60 ${UBLKD_VM_APPEND:-}"
    # What the guest says beside its output: one word when it is done.
    mkfifo "$work/word"
    exec {word_in}<>"$work/word"
    exec {word}<"$work/word" {word_out}>"$work/word" {word_in}>&-
    wait_for_sockets
    spawn qemu-system-x86_64 "${accelerator[@]}" -cpu "$cpu" -smp "$opt_cpus" -m "$opt_memory" \
        -nodefaults -no-user-config -display none -vga none -no-reboot \
        -object "memory-backend-memfd,id=mem,size=${opt_memory}M,share=on" -numa node,memdev=mem \
        -chardev "file,id=console,path=${opt_console:-$work/console}" -serial chardev:console \
        -chardev "file,id=word,path=$work/word" -serial chardev:word \
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
    tail -c +1 -f -s 0.1 --pid="$qemu" -- "$ctl/stdout" {reaper_pipe}>&- </dev/null &
    tail_out=$!
    tail -c +1 -f -s 0.1 --pid="$qemu" -- "$ctl/stderr" {reaper_pipe}>&- </dev/null >&2 &
    tail_err=$!
    printf '%s\n' "$tail_out" "$tail_err" >>"$work/pids"
}

# Sets outcome: done, died or late.
wait_for_guest() {
    local said='' deadline=$((SECONDS + opt_timeout))
    while :; do
        if read -r -t 0.5 -u "$word" said; then
            [[ $said == done* ]] || continue
            outcome=done
            break
        elif (($? <= 128)); then # the writing end is closed: no qemu any more
            outcome=died
            break
        fi
        if ((SECONDS >= deadline)); then
            outcome=late
            break
        fi
    done
    if [[ -s $ctl/status ]]; then outcome=done; fi
    kill -KILL "$qemu" 2>/dev/null || true
    wait "$qemu" 2>/dev/null || true
    wait "$tail_out" "$tail_err" 2>/dev/null || true
}

end_machine() {
    local child
    trap '' TERM INT HUP
    trap - EXIT
    for child in ${children[@]+"${children[@]}"} ${tail_out:-} ${tail_err:-}; do
        kill -KILL "$child" 2>/dev/null || true
    done
    wait ${children[@]+"${children[@]}"} ${tail_out:-} ${tail_err:-} 2>/dev/null || true
}
