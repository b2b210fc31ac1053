"""Runs every configuration with Partita and with each peer, one process at a time and in turns, and takes medians of the rounds.

Prints a table, or with --json one object:
{"nano": {"ours_ms", "best_peer", "best_ms", "ratio", "ours_peak_mib", "best_peak_mib", "lowest_peak_mib", "gflop"}, ..}
Times are of one training step (median of a process's steps, then of the rounds) in milliseconds, peaks are resident memory in MiB;
`ratio` is ours to the fastest peer's. The config `generation` measures new tokens of a GPT-2 of 124 M parameters at batch 1:
{"ours_ms", "read_gb_s", "of_bandwidth", "best_peer", "best_ms", "ratio", "peers_ms"}, where `of_bandwidth` is the part of our time in
which memory gives the weights, as fast as `--profile` finds that it can. Peers import hundreds of MiB of libraries, which their peaks include.
The configs `ranks-nano` and `ranks-micro` divide the batch over two ranks of one thread each, in turns with one rank of two threads and with
DistributedDataParallel (gloo, two processes): {"two_ranks_ms", "one_rank_ms", "of_one_rank", "ddp_ms", "of_ddp", "ddp_of_eager"}, ratios being
medians of those of single turns."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MODELS = os.path.join(ROOT, "benches", "models")
PARTITA = os.path.join(ROOT, "target", "release", "partita")

# Program, preset and measured steps; the steps of the peers' own programs are alike.
OURS = {
    "mlp": ("mlp.pta", None, 400),
    "nano": ("gpt.pta", "nano", 40),
    "micro": ("gpt.pta", "micro", 15),
    "small": ("gpt.pta", "small", 8),
    "wide": ("wide.pta", None, 8),
}
PEERS = {
    "mlp": [("torch", "eager"), ("torch", "compile"), ("jax", "jit")],
    "nano": [("torch", "eager"), ("torch", "compile"), ("jax", "flat")],
    "micro": [("torch", "eager"), ("torch", "compile"), ("jax", "flat")],
    "small": [("torch", "eager"), ("torch", "compile"), ("jax", "flat")],
    "wide": [("torch", "eager"), ("jax", "jit")],
}
# Tokens that are generated, and the bytes of the weights that each of them needs: all but the positions.
TOKENS = 64
READ = 4 * (12 * (12 * 768 * 768 + 13 * 768) + 2 * 768 + 50257 * 768)
# The allocator that keeps torch from mapping its gradients anew in every step.
KIND = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "67108864"}


def data(folder):
    """What the programs read: random, of the sizes that they need."""
    draw = numpy.random.default_rng(0)
    draw.integers(0, 256, 200_000).astype("<u2").tofile(os.path.join(folder, "tokens.bin"))
    save = lambda name, array: numpy.save(os.path.join(folder, name), array)
    save("image.npy", draw.standard_normal((1024, 784), dtype=numpy.float32))
    save("label.npy", draw.integers(0, 10, 1024).astype(numpy.int32))
    save("x.npy", draw.standard_normal((128, 8192), dtype=numpy.float32))
    save("goal.npy", draw.standard_normal((128, 8192), dtype=numpy.float32))
    for name in filter(lambda name: name.endswith(".pta"), os.listdir(MODELS)):
        with open(os.path.join(MODELS, name)) as f, open(os.path.join(folder, name), "w") as g:
            g.write(f.read())


def run(command, env=None):
    """Standard output and peak resident memory in MiB of a process that must succeed."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        out.seek(0)
        err.seek(0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise RuntimeError(f"{' '.join(command)}: {err.read()[-2000:]}")
        return out.read(), usage.ru_maxrss / 1024


def ours(config, folder, args):
    program, preset, steps = OURS[config]
    command = [PARTITA, "train", os.path.join(folder, program), "--threads", str(args.threads), "--no-save"]
    command += ["--out", os.path.join(folder, "run")]
    command += ["--preset", preset] if preset else []
    command += ["--precision", args.precision] if args.precision else []
    text, _ = run([*command, "--profile", "--steps", str(steps + 1)])
    # A profile also measures the machine, in memory of its own: the peak is that of a run without one.
    _, peak = run([*command, "--steps", "3"])
    return float(re.search(r"median ([0-9.]+) ms", text).group(1)), peak


def peer(config, framework, mode, args):
    script = os.path.join(args.scripts, f"{framework}_train.py")
    env = dict(os.environ, **(KIND if config == "wide" else {}))
    text, peak = run([sys.executable, script, config, mode], env)
    return json.loads(text.strip().splitlines()[-1])["ms_median"], peak


def generation(args):
    """Generates with a model of 124 M parameters, one token after another."""
    text, _ = run([
        PARTITA, "sample", os.path.join(MODELS, "gpt.pta"), "--preset", "gpt2", "--initial", "--temperature", "0", "--prompt", "0",
        "--length", str(TOKENS), "--profile", "--threads", str(args.threads),
        *(["--precision", args.precision] if args.precision else []),
    ])  # fmt: skip
    find = lambda pattern: float(re.search(pattern, text).group(1))
    return find(r"median ([0-9.]+) ms"), find(r"([0-9.]+) GB/s \(reads\)") * 1e9


def peers_generation(args, mode):
    script = os.path.join(HERE, "torch_generate.py")
    text, _ = run([sys.executable, script, mode, "--tokens", str(TOKENS), "--threads", str(args.threads)])
    return json.loads(text.strip().splitlines()[-1])["ms_median"]


def compare_generation(args):
    """Milliseconds of a token, beside the peer's and the time in which memory gives the weights."""
    ours, speeds, peers = [], [], {}
    for _ in range(args.rounds):
        time, speed = generation(args)
        ours.append(time)
        speeds.append(speed)
        for mode in [] if args.alone else ["eager", "compile"]:
            peers.setdefault(f"torch-{mode}", []).append(peers_generation(args, mode))
        print("generation", ours[-1], {k: v[-1] for k, v in peers.items()}, file=sys.stderr)
    read = READ / (2 if args.precision in ("bf16", "f16") else 1)
    time, speed = statistics.median(ours), statistics.median(speeds)
    row = {"ours_ms": round(time, 3), "read_gb_s": round(speed / 1e9, 2), "of_bandwidth": round(read / speed / time * 1e3, 3)}
    times = {name: statistics.median(all) for name, all in peers.items()}
    if times:
        best = min(times, key=times.get)
        row |= {"best_peer": best, "best_ms": round(times[best], 3), "ratio": round(time / times[best], 3)}
        row["peers_ms"] = {name: round(t, 3) for name, t in times.items()}
    return row


def least(config):
    """The arithmetic that a step cannot do without, causal attention halved."""
    shapes = {"nano": (4, 128, 128, 16), "micro": (6, 384, 256, 8), "small": (12, 768, 256, 4)}
    if config == "mlp":
        return 6 * (784 * 512 + 512 * 512 + 512 * 10) * 128
    if config == "wide":
        return 6 * 2 * 8192 * 32768 * 64 - 2 * 8192 * 32768 * 64  # nobody asks for the gradient of the input
    depth, width, positions, batch = shapes[config]
    tokens = positions * batch
    return 6 * (12 * depth * width * width + 256 * width) * tokens + 6 * depth * positions * width * tokens


def turn(config, plan, folder, args):
    """Milliseconds of a step under a plan of two ranks, or on one rank, with as many threads in all."""
    program, preset, steps = OURS[config]
    command = [PARTITA, "train", os.path.join(folder, program), "--no-save", "--out", os.path.join(folder, "run"), "--preset", preset]
    command += ["--threads", "2", "--profile", "--steps", str(steps + 1), *(["--plan", plan] if plan else [])]
    return float(re.search(r"median ([0-9.]+) ms", run(command)[0]).group(1))


def compare_ranks(config, folder, args):
    """Two ranks beside one, and beside the peer's two processes."""
    turns = {}
    for _ in range(args.rounds):
        turns.setdefault("one_rank", []).append(turn(config, None, folder, args))
        turns.setdefault("two_ranks", []).append(turn(config, "ranks", folder, args))
        for name, mode in [] if args.alone else [("ddp", "ddp2"), ("eager", "eager")]:
            turns.setdefault(name, []).append(peer(config, "torch", mode, args)[0])
        print(f"ranks-{config}", {k: v[-1] for k, v in turns.items()}, file=sys.stderr)
    ratio = lambda a, b: round(statistics.median(x / y for x, y in zip(turns[a], turns[b])), 3)
    middle = lambda name: round(statistics.median(turns[name]), 3)
    row = {"two_ranks_ms": middle("two_ranks"), "one_rank_ms": middle("one_rank"), "of_one_rank": ratio("two_ranks", "one_rank")}
    if not args.alone:
        row |= {"ddp_ms": middle("ddp"), "of_ddp": ratio("two_ranks", "ddp"), "ddp_of_eager": ratio("ddp", "eager")}
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--configs", default="mlp,nano,micro,small,wide")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--precision", help="of ours alone, to compare with our own f32")
    p.add_argument("--json", action="store_true")
    p.add_argument("--alone", action="store_true", help="do not run the peers")
    p.add_argument("--scripts", default=os.environ.get("PARTITA_PEERS", os.path.join(ROOT, "..", "shared", "peers-bench")))
    args = p.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    training = any(config != "generation" for config in args.configs.split(","))
    if training and not args.alone and not os.path.exists(os.path.join(args.scripts, "torch_train.py")):
        sys.exit(f"no peers' programs in {args.scripts}: give their folder with --scripts DIR, or leave them out with --alone")
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        data(folder)
        for config in args.configs.split(","):
            if config == "generation":
                result[config] = compare_generation(args)
                continue
            if config.startswith("ranks-"):
                result[config] = compare_ranks(config.removeprefix("ranks-"), folder, args)
                continue
            runs = {}
            for _ in range(args.rounds):
                runs.setdefault("ours", []).append(ours(config, folder, args))
                for framework, mode in [] if args.alone else PEERS[config]:
                    runs.setdefault(f"{framework}-{mode}", []).append(peer(config, framework, mode, args))
                    print(config, {k: v[-1] for k, v in runs.items()}, file=sys.stderr)
            times = {name: statistics.median(r[0] for r in all) for name, all in runs.items()}
            peaks = {name: statistics.median(r[1] for r in all) for name, all in runs.items()}
            row = {"ours_ms": round(times["ours"], 3), "ours_peak_mib": round(peaks["ours"]), "gflop": round(least(config) / 1e9, 2)}
            others = [name for name in times if name != "ours"]
            if others:
                best = min(others, key=times.get)
                row |= {
                    "best_peer": best,
                    "best_ms": round(times[best], 3),
                    "ratio": round(times["ours"] / times[best], 3),
                    "best_peak_mib": round(peaks[best]),
                    "lowest_peak_mib": round(min(peaks[n] for n in others)),
                    "peers_ms": {n: round(times[n], 3) for n in others},
                }
            result[config] = row
    if args.json:
        print(json.dumps(result))
        return
    print("config     ours ms   best peer      its ms   ratio   ours MiB  lowest MiB  GFLOP/s")
    generated = result.pop("generation", None)
    divided = {config: result.pop(config) for config in list(result) if config.startswith("ranks-")}
    for config, r in result.items():
        speed = r["gflop"] / r["ours_ms"] * 1e3
        print(
            f"{config:8} {r['ours_ms']:9.2f}   {r.get('best_peer', '-'):13} {r.get('best_ms', 0):8.2f}  {r.get('ratio', 0):6.3f}"
            f"   {r['ours_peak_mib']:8}  {r.get('lowest_peak_mib', 0):10}  {speed:7.1f}"
        )
    for config, r in divided.items():
        beside = f"; DDP {r['ddp_ms']:.2f} ms, ratio {r['of_ddp']:.3f}, it to one process {r['ddp_of_eager']:.3f}" if "ddp_ms" in r else ""
        print(f"{config} {r['two_ranks_ms']:.2f} ms, to one rank of two threads {r['of_one_rank']:.3f}{beside}")
    if r := generated:
        beside = f"; {r['best_peer']} {r['best_ms']:.2f} ms, ratio {r['ratio']:.3f}" if "ratio" in r else ""
        print(f"generation {r['ours_ms']:.2f} ms a token, {100 * r['of_bandwidth']:.0f} % of {r['read_gb_s']:.1f} GB/s{beside}")


if __name__ == "__main__":
    main()
