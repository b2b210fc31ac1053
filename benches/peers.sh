#!/bin/sh
# Measures training steps of Partita and of its peers (PyTorch, JAX) side by side: f32, two threads, AdamW.
#
#   benches/peers.sh [--configs mlp,nano,..] [--rounds N] [--json] [--scripts DIR]
#
# With `--configs generation` it measures new tokens of a GPT-2 of 124 M parameters, batch 1, instead (the peer: torch_generate.py).
# `ranks-nano` and `ranks-micro` compare two ranks of one thread each with one rank of two, and with DistributedDataParallel.
#
# The peers' programs are `torch_train.py` and `jax_train.py` in DIR (else $PARTITA_PEERS, else ../shared/peers-bench). They run in a
# virtual environment that is made in target/peers on first use, which takes some gigabytes.
set -eu
cd "$(dirname "$0")/.."
venv=target/peers
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" >&2
    "$venv/bin/pip" install --quiet numpy jax torch >&2
fi
cargo build --release --quiet >&2
exec "$venv/bin/python" benches/peers/measure.py "$@"
