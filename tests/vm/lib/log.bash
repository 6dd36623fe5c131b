# Judges a run: the command's own status, unless the guest hung, died, or its
# kernel complained. Sourced by run.
# shellcheck shell=bash

# A kernel's complaints. Stalls and lockups count as well: emulation starves a
# processor for a while on a busy host, so their limits are raised to 60 s
# (guest/main, lib/machine.bash) rather than their lines hidden.
complaints='WARNING: |BUG: |kernel BUG at|Oops|general protection|[Uu]nable to handle kernel|Kernel panic'
complaints+='|KASAN|KCSAN|KFENCE: |UBSAN|rcu: INFO:|INFO: rcu_|self-detected stall|detected stalls|kthread starved for'
complaints+='|blocked for more than|blocked in I/O wait for more than|soft lockup|[Hh]ard LOCKUP|workqueue lockup'
complaints+='|INFO: possible|INFO: trying to register non-static key|inconsistent lock state|(circular|recursive) locking'
complaints+='|suspicious RCU usage|DEBUG_LOCKS_WARN|held lock freed|lock held when returning|bad unlock balance'
complaints+='|scheduling while atomic|sleeping function called|refcount_t:|list_(add|del) corruption|Bad page'
complaints+='|Out of memory: Killed process|page allocation failure|double fault|stack guard page'
# Said of some processors at every boot: about the processor, not about us.
harmless='Spectre|MDS|TAA|MMIO Stale Data|L1TF|[Cc]ommand line: '

# complaint_lines: the kernel's complaints, each block with what follows it.
complaint_lines() {
    local allowed=$harmless rule log=$work/log
    for rule in ${opt_allow[@]+"${opt_allow[@]}"}; do allowed+="|$rule"; done
    # The kernel's own log is whole; the console is all there is of a dead guest.
    { cat -- "$ctl/dmesg" 2>/dev/null || true; tr -d '\r' <"$console" 2>/dev/null || true; } >"$log"
    awk -v bad="$complaints" -v fine="$allowed" '
        { line = $0; sub(/^\[[ 0-9.]*\] (\[[^]]*\] )?/, "", line) }
        /\[ cut here \]/ { cut = NR }
        $0 ~ bad && $0 !~ fine { left = 25 }
        left > 0 { if (!($0 in seen)) print; seen[$0] = 1; left-- }
        /end trace/ { left = 0 }' "$log"
}

last_console_lines() {
    say "the last lines of the guest's console:"
    tr -d '\r' <"$console" 2>/dev/null | tail -n 60 >&2 || true
    if [[ -s $work/qemu.log ]]; then tail -n 10 -- "$work/qemu.log" >&2; fi
}

judge() {
    local found status
    found=$(complaint_lines)
    status=$(cat -- "$ctl/status" 2>/dev/null || true)
    if [[ -s $ctl/note ]]; then say "$(<"$ctl/note")"; fi
    if [[ -n $found ]]; then
        say "the guest's kernel complained:"
        printf '%s\n' "$found" | head -n 200 >&2
        if [[ $accel == tcg && $found == *'Oops: int3'* ]]; then
            say "'Oops: int3' under emulation is the emulator's fault: see tests/vm/README.md"
        fi
    fi
    case $outcome in
        done)
            if [[ -n $found ]]; then
                say "status 123 for that; the command's own was $status"
                exit 123
            fi
            exit "$status"
            ;;
        late)
            if [[ -s $ctl/processes ]]; then
                say "the guest's processes (id, thread, parent, state, waits in, seconds, name, command):"
                head -n 300 -- "$ctl/processes" >&2
            fi
            last_console_lines
            say "not done after $opt_timeout s: the guest was ended"
            exit 124
            ;;
        *)
            last_console_lines
            say "the guest ended without giving a status"
            exit 125
            ;;
    esac
}
