# Reads the command line of run into opt_* and the array command. Sourced.
# shellcheck shell=bash disable=SC2034 # read by the other files

opt_kernel=${UBLKD_VM_KERNEL:-$vm_default_kernel}
opt_cpus=
opt_cpu=${UBLKD_VM_CPU:-}
opt_memory=3072
opt_icount=0
opt_warp=0
opt_timeout=${UBLKD_VM_TIMEOUT:-600}
opt_share=
opt_disks=()
opt_env=()
opt_allow=()
opt_console=
opt_pidfile=
opt_host=0

whole() { [[ $2 =~ ^[1-9][0-9]*$ ]] || fail 2 "$1 needs a whole number above 0, not '$2'"; }

read_options() {
    local name
    while (($#)); do
        name=$1
        if [[ $name == --?*=* && $name != --env=* ]]; then # --name=value
            set -- "${name%%=*}" "${name#*=}" "${@:2}"
            name=$1
        fi
        case $name in
            --) shift; break ;;
            --icount) opt_icount=1; shift; continue ;;
            --warp) opt_icount=1 opt_warp=1; shift; continue ;;
            --host) opt_host=1; shift; continue ;;
            -h | --help) sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$vm_room/run"; exit 0 ;;
            -*) (($# > 1)) || fail 2 "$name needs a value" ;;
            *) break ;;
        esac
        case $name in
            --kernel) opt_kernel=$2 ;;
            --cpus) whole "$name" "$2"; opt_cpus=$2 ;;
            --cpu) opt_cpu=$2 ;;
            --memory) whole "$name" "${2%[Mm]}"; opt_memory=${2%[Mm]} ;;
            --timeout) whole "$name" "$2"; opt_timeout=$2 ;;
            --share) [[ -d $2 ]] || fail 2 "--share: no such folder: $2"; opt_share=$(realpath -- "$2") ;;
            --disk) opt_disks+=("size:$2") ;;
            --disk-file) [[ -f $2 || -b $2 ]] || fail 2 "--disk-file: no such file: $2"; opt_disks+=("file:$(realpath -- "$2")") ;;
            --env) opt_env+=("$2") ;;
            --allow-log) opt_allow+=("$2") ;;
            --console) opt_console=$2 ;;
            --pidfile) opt_pidfile=$2 ;;
            *) fail 2 "unknown option: $name (tests/vm/run --help)" ;;
        esac
        shift 2
    done
    command=("$@")
    ((${#command[@]})) || fail 2 "no command (tests/vm/run --help)"
    opt_cpus=${opt_cpus:-$((opt_icount ? 1 : 2))}
}
