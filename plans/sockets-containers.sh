#!/usr/bin/env bash
# Round trips and streams between two network namespaces that a bridge connects, as containers of one host are: plain TCP, and `apus run`
# with a directory that both share, in alternation. Needs root.
#
#     plans/sockets-containers.sh [RUNS] [SECONDS]       (3 runs of 1 s)
#
# The server is pinned to core 0 and the client to core 1. A row has the median of the runs, and all of them.
set -euo pipefail
runs=${1:-3} seconds=${2:-1}
root=$(cd "$(dirname "$0")/.." && pwd)
[ -n "${APUS:-}" ] || (cd "$root" && cargo build --release --locked -p apus-cli 2>/dev/null)
apus=${APUS:-${CARGO_TARGET_DIR:-$root/target}/release/apus}
work=$(mktemp -d)
one=boxes$$a other=boxes$$b bridge=boxes$$s
stop() {
    for name in "$one" "$other" "$bridge"; do ip netns del "$name" 2>/dev/null || true; done
    rm -rf "$work"
}
trap stop EXIT
mkdir -m 1777 "$work/shared"
cc -O2 -o "$work/program" "$root/plans/sockets-containers.c"
for name in "$one" "$other" "$bridge"; do ip netns add "$name"; done
ip -n "$bridge" link add bridge type bridge
ip -n "$bridge" link set bridge up
number=1
for name in "$one" "$other"; do
    ip -n "$bridge" link add "to$number" type veth peer name eth0 netns "$name"
    ip -n "$bridge" link set "to$number" master bridge up
    ip -n "$name" link set lo up
    ip -n "$name" addr add "10.89.0.$number/24" dev eth0
    ip -n "$name" link set eth0 up
    number=$((number + 1))
done
port=7000
once() { # what, size; the rest is the command before the program
    local what=$1 size=$2 ready
    shift 2
    port=$((port + 1))
    coproc server { exec ip netns exec "$other" taskset -c 0 "$@" "$work/program" server 10.89.0.2 "$port"; }
    local pid=$server_PID
    read -r ready <&"${server[0]}"
    ip netns exec "$one" taskset -c 1 "$@" "$work/program" "$what" 10.89.0.2 "$port" "$size" "$seconds"
    wait "$pid" 2>/dev/null || true
}
median() { sort -n | awk '{ all[NR] = $1 } END { printf "%s", all[int((NR + 1) / 2)]; printf "  ("; for (i = 1; i <= NR; i++) printf "%s%s", all[i], i < NR ? ", " : ")\n" }'; }
export APUS_SHM_DIR=$work/shared
for row in "rr 1000" "stream 1000" "stream 65536"; do
    read -r what size <<<"$row"
    for _ in $(seq "$runs"); do
        once "$what" "$size" >>"$work/$what$size.tcp"
        once "$what" "$size" "$apus" run >>"$work/$what$size.apus"
    done
    printf "%-14s TCP       %s\n" "$row" "$(median <"$work/$what$size.tcp")"
    printf "%-14s apus run  %s\n" "" "$(median <"$work/$what$size.apus")"
done
