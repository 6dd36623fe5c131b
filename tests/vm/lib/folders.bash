# The folders of the host that the guest sees: a virtiofsd for each. Sourced by
# run; adds to the arrays machine (qemu's arguments) and sockets.
# shellcheck shell=bash

# serve TAG FOLDER CACHE: virtiofsd is written in C up to Debian 12, and another
# program in Rust later, with options of its own.
serve() {
    local tag=$1 folder=$2 cache=$3 options
    local socket=$work/$tag.sock
    if [[ $virtiofsd == /usr/lib/qemu/* ]]; then
        options=(-o "source=$folder" -o sandbox=chroot -o "cache=$cache")
        [[ $tag != share ]] || options+=(-o allow_direct_io)
    else
        options=(--shared-dir "$folder" --sandbox chroot --cache "$cache")
        [[ $tag != share ]] || options+=(--allow-direct-io)
    fi
    spawn "$virtiofsd" --socket-path="$socket" "${options[@]}" >"$work/$tag.log" 2>&1
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
