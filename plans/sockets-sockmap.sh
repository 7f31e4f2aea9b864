#!/usr/bin/env bash
# redis over kernel TCP, over TCP whose messages a BPF program hands to the other end (sockmap), and under `apus run`, in alternation:
# GET requests per second, medians. The server is pinned to core 0 and the load generator to core 1.
#
#     plans/sockets-sockmap.sh [RUNS]        (3)
#
# Needs root, cgroup v2, clang, bpftool, the headers of libbpf, redis-server and redis-benchmark. `apus run` needs none of these.
set -euo pipefail
runs=${1:-3}
root=$(cd "$(dirname "$0")/.." && pwd)
for program in clang bpftool redis-server redis-benchmark; do
    command -v "$program" >/dev/null || { echo "skipped: $program is not installed"; exit 0; }
done
(cd "$root" && cargo build --release --locked -p apus-cli 2>/dev/null)
apus=${APUS:-${CARGO_TARGET_DIR:-$root/target}/release/apus}
work=$(mktemp -d)
pins=/sys/fs/bpf/apus-sockmap-$$
clean() {
    for pid in $(cat "$work/cgroup/here/cgroup.procs" 2>/dev/null); do kill "$pid" 2>/dev/null || true; done
    bpftool cgroup detach "$work/cgroup/here" cgroup_sock_ops pinned "$pins/established" 2>/dev/null || true
    rm -rf "$pins"
    sleep 0.2
    rmdir "$work/cgroup/here" 2>/dev/null || true
    umount "$work/cgroup" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
clang -O2 -g -target bpf -I"/usr/include/$(uname -m)-linux-gnu" -c "$root/plans/sockets-sockmap/redirect.bpf.c" -o "$work/redirect.o"
mountpoint -q /sys/fs/bpf || mount -t bpf none /sys/fs/bpf
mkdir "$work/cgroup" && mount -t cgroup2 none "$work/cgroup" && mkdir "$work/cgroup/here"
bpftool prog loadall "$work/redirect.o" "$pins" pinmaps "$pins"
bpftool cgroup attach "$work/cgroup/here" cgroup_sock_ops pinned "$pins/established"
bpftool prog attach pinned "$pins/redirect" sk_msg_verdict pinned "$pins/connections"

in_cgroup() { # runs a command whose connections the BPF programs see
    bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$work/cgroup/here" "$@"
}
redis() { # connections, requests
    local port
    port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
    "${under[@]}" taskset -c 0 redis-server --port "$port" --save "" --appendonly no >/dev/null &
    local server=$!
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.05; done
    "${under[@]}" taskset -c 1 redis-benchmark -p "$port" -c "$1" -n "$2" -t get --csv 2>/dev/null | tail -1 | cut -d, -f2 | tr -d '"'
    kill "$server"
    wait "$server" 2>/dev/null || true
}
median() { sort -g | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }

sed -n 's/^model name.*: /CPU: /p' /proc/cpuinfo | head -1
uname -r
printf '%-28s %12s %12s %12s\n' "requests per second" TCP sockmap "apus run"
for case in "1 30000" "50 200000"; do
    for _ in $(seq "$runs"); do
        # shellcheck disable=SC2086
        { under=(env) && redis $case >>"$work/tcp.${case%% *}"
          under=(in_cgroup) && redis $case >>"$work/sockmap.${case%% *}"
          under=("$apus" run) && redis $case >>"$work/apus.${case%% *}"; }
    done
    printf '%-28s' "redis GET, ${case%% *} connection(s)"
    for way in tcp sockmap apus; do printf ' %12.6g' "$(median <"$work/$way.${case%% *}")"; done
    echo
done
