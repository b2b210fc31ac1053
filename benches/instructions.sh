#!/usr/bin/env bash
# Instructions that the compiler executes, counted by callgrind, against the counts in instructions.json.
#
#   benches/instructions.sh [--bless]
#
# Counts are repeatable to about a thousandth on one machine and toolchain, so a count that is more than 5 % above the noted
# one fails. One that is more than 5 % below is reported, to be noted with --bless, which writes the file anew.
set -euo pipefail
cd "$(dirname "$0")/.."
tolerance=5
noted=benches/instructions.json
command -v valgrind >/dev/null || { echo "valgrind is needed: see your package manager" >&2; exit 2; }
cargo build --release --quiet
partita=${CARGO_TARGET_DIR:-target}/release/partita
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp benches/models/gpt.pta examples/llama3.pta "$folder"
mkdir "$folder/fineweb"
# Ids of zero are in every vocabulary.
head -c 65536 /dev/zero | tee "$folder/tokens.bin" >"$folder/fineweb/train.bin"

count() { # arguments of partita
    (cd "$folder" && PARTITA_CACHE=off valgrind --tool=callgrind --callgrind-out-file=/dev/null "$partita" --threads 1 "$@" \
        2>&1 >/dev/null | sed -n 's/^==[0-9]*== Collected : \([0-9]*\).*/\1/p')
}

cases=(
    "gpt small, check:check gpt.pta --preset small"
    "gpt small, memory:memory gpt.pta --preset small"
    "gpt small, compile:train gpt.pta --preset small --dry-run"
    "llama 8 layers, compile:train llama3.pta --set depth=8 --set batch=1 --set seq=512 --dry-run"
    "llama 16 layers, compile:train llama3.pta --set depth=16 --set batch=1 --set seq=512 --dry-run"
)
partita=$(realpath "$partita")
new="{"
failed=0
for case in "${cases[@]}"; do
    name=${case%%:*}
    read -ra arguments <<<"${case#*:}"
    now=$(count "${arguments[@]}")
    [ -n "$now" ] || { echo "$name: it did not run" >&2; exit 1; }
    new+=$'\n'"  \"$name\": $now,"
    before=$(sed -n "s/^ *\"$name\": \([0-9]*\),\{0,1\}$/\1/p" "$noted" 2>/dev/null || true)
    if [ -z "$before" ]; then
        printf '%-28s %15d  not noted\n' "$name" "$now"
        continue
    fi
    change=$(((now - before) * 1000 / before))
    printf '%-28s %15d  %+d.%d %%\n' "$name" "$now" $((change / 10)) $((change < 0 ? -change % 10 : change % 10))
    if [ "$change" -gt $((tolerance * 10)) ]; then
        failed=1
    fi
done
if [ "${1:-}" = --bless ]; then
    printf '%s\n}\n' "${new%,}" >"$noted"
    exit 0
fi
[ $failed = 0 ] || { echo "more than $tolerance % above what is noted in $noted" >&2; exit 1; }
