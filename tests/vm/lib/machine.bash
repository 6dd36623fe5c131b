# Starts the machine: disks, the kernel's arguments, qemu. Sourced by run.
# shellcheck shell=bash

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
    append+=" mitigations=off audit=0 cryptomgr.notests"
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
        kvm) accelerator=(-accel kvm) cpu=${opt_cpu:-host} ;;
        *) accelerator=(-accel tcg,thread=multi) cpu=${opt_cpu:-max} ;;
    esac
    if ((opt_icount)); then
        local sleep=on
        ((opt_warp == 0)) || sleep=off
        accelerator=(-accel tcg,thread=single -icount "shift=0,sleep=$sleep")
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
