#!/usr/bin/env bash
# Streams and round trips of 1 byte under `apus run` on a machine with other work: medians over parts of each run, in Gb/s and ns.
# `line` says how long a cache line takes from one processor to the other and back: where that changes, runs are not alike.
#
#     plans/sockets-streams.sh [RUNS [LIBRARY...]]     libraries to compare, in alternation; the one of this tree if none is named
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-5}
shift || true
if [ $# = 0 ]; then
    cargo build --release --locked --quiet -p apus-preload
    set -- "$(realpath "${CARGO_TARGET_DIR:-target}/release/libapus_preload.so")"
fi
program=$(mktemp)
trap 'rm -f "$program"' EXIT
cc -O2 -pthread -o "$program" crates/apus-preload/tests/streams.c
for ((run = 0; run < runs; run++)); do
    for library in "$@"; do
        echo "$library: $(LD_PRELOAD=$library "$program" 0.15 1000 4000 16000 64000 256000 1000000 4000000)"
    done
done
