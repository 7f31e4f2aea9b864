#!/usr/bin/env bash
# Programs that are not preloaded, or by a runtime of their own, as peers of one that is, in both roles: a known stream goes through an
# echo server and has to come back whole.
#
#     plans/sockets-peers.sh [BYTES]        3,000,000 by default
#
# Peers: a program in C, one in Rust with rustix, and, where they are installed, Go, node and Python with uvloop. Each of them runs
# plain and, if it can be preloaded, under `apus run`; the program in C at the other end always runs under `apus run`.
set -euo pipefail
cd "$(dirname "$0")/.."
bytes=${1:-3000000}
cargo build --release --locked --quiet -p apus-cli
cargo build --release --locked --quiet -p apus-bench --example rustix_peer
target=${CARGO_TARGET_DIR:-target}/release
apus=$target/apus
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O2 -pthread -o "$work/peer" plans/sockets-peers/peer.c
failures=0

# with_server SERVER... -- CLIENT...: the client gets the server's port and the bytes.
with_server() {
    local server=()
    while [ "$1" != -- ]; do
        server+=("$1")
        shift
    done
    shift
    "${server[@]}" server >"$work/port" 2>/dev/null &
    local pid=$!
    until [ -s "$work/port" ]; do sleep 0.05; done
    local result=whole
    timeout 60 "$@" client "$(cat "$work/port")" "$bytes" 2>"$work/said" || result="FAILED: $(cat "$work/said")"
    kill "$pid"
    wait "$pid" 2>/dev/null || true
    : >"$work/port"
    [ "$result" = whole ] || failures=$((failures + 1))
    printf '%s' "$result"
}

# peer NAME COMMAND...
peer() {
    local name=$1
    shift
    printf '%-28s as server %s, as client %s\n' "$name" "$(with_server "$@" -- "$apus" run "$work/peer")" \
        "$(with_server "$apus" run "$work/peer" -- "$@")"
}

peer "C" "$work/peer"
peer "C, apus run" "$apus" run "$work/peer"
peer "Rust with rustix" "$target/examples/rustix_peer"
peer "Rust with rustix, apus run" "$apus" run "$target/examples/rustix_peer"
if command -v go >/dev/null; then
    (cd plans/sockets-peers && GO111MODULE=off CGO_ENABLED=0 go build -o "$work/go-peer" peer.go)
    peer "Go" "$work/go-peer"
else
    echo "Go: not installed"
fi
if command -v node >/dev/null; then
    peer "node" node plans/sockets-peers/peer.mjs
    peer "node, apus run" env UV_USE_IO_URING=1 "$apus" run node plans/sockets-peers/peer.mjs
else
    echo "node: not installed"
fi
if /usr/bin/python3 -c 'import uvloop' 2>/dev/null; then
    peer "uvloop" /usr/bin/python3 plans/sockets-peers/peer.py --uvloop
    peer "uvloop, apus run" "$apus" run /usr/bin/python3 plans/sockets-peers/peer.py --uvloop
else
    echo "uvloop: not installed"
fi
exit $((failures > 0))
