#!/usr/bin/env python3
"""Draws the small data sets of the examples: strokes-* (digits of 28 x 28 as IDX files) and shapes.npy (coloured discs
and boxes of 32 x 32). Needs nothing but Python; the same files come out every time."""
import gzip
import math
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).parent
# Each digit as lines through points of the unit square, y downwards.
STROKES = {
    0: [[(0.5, 0.1), (0.78, 0.25), (0.8, 0.7), (0.5, 0.9), (0.22, 0.7), (0.22, 0.25), (0.5, 0.1)]],
    1: [[(0.35, 0.25), (0.55, 0.1), (0.55, 0.9)]],
    2: [[(0.25, 0.25), (0.5, 0.1), (0.75, 0.28), (0.25, 0.9), (0.78, 0.9)]],
    3: [[(0.25, 0.15), (0.7, 0.15), (0.45, 0.45), (0.75, 0.65), (0.55, 0.9), (0.25, 0.82)]],
    4: [[(0.65, 0.9), (0.65, 0.1), (0.2, 0.62), (0.82, 0.62)]],
    5: [[(0.75, 0.1), (0.3, 0.1), (0.28, 0.45), (0.65, 0.45), (0.75, 0.68), (0.55, 0.9), (0.25, 0.85)]],
    6: [[(0.68, 0.1), (0.35, 0.4), (0.25, 0.7), (0.5, 0.9), (0.74, 0.72), (0.55, 0.52), (0.28, 0.65)]],
    7: [[(0.22, 0.1), (0.78, 0.1), (0.42, 0.9)]],
    8: [[(0.5, 0.48), (0.28, 0.28), (0.5, 0.1), (0.72, 0.28), (0.5, 0.48), (0.25, 0.7), (0.5, 0.9), (0.75, 0.7),
         (0.5, 0.48)]],
    9: [[(0.72, 0.35), (0.5, 0.5), (0.27, 0.32), (0.48, 0.1), (0.72, 0.28), (0.7, 0.6), (0.45, 0.9)]],
}


def distance(p, a, b):
    """From a point to a line segment."""
    (px, py), (ax, ay), (bx, by) = p, a, b
    dx, dy = bx - ax, by - ay
    t = max(0.0, min(1.0, ((px - ax) * dx + (py - ay) * dy) / (dx * dx + dy * dy + 1e-12)))
    return math.hypot(px - ax - t * dx, py - ay - t * dy)


def digit(kind, rnd, side=28):
    """One digit: turned, stretched, moved, drawn with a pen of some width."""
    turn, wide, high = rnd.uniform(-0.25, 0.25), rnd.uniform(0.6, 0.9), rnd.uniform(0.65, 0.95)
    slant, x0, y0, pen = rnd.uniform(-0.2, 0.2), rnd.uniform(-0.08, 0.08), rnd.uniform(-0.08, 0.08), rnd.uniform(0.03, 0.06)
    c, s = math.cos(turn), math.sin(turn)
    lines = []
    for stroke in STROKES[kind]:
        points = []
        for x, y in stroke:
            x, y = (x - 0.5 + rnd.uniform(-0.02, 0.02)) * wide, (y - 0.5 + rnd.uniform(-0.02, 0.02)) * high
            x += slant * y
            points.append((0.5 + x0 + c * x - s * y, 0.5 + y0 + s * x + c * y))
        lines += list(zip(points, points[1:]))
    image = bytearray()
    for row in range(side):
        for col in range(side):
            p = ((col + 0.5) / side, (row + 0.5) / side)
            d = min(distance(p, a, b) for a, b in lines)
            image.append(round(255 * max(0.0, min(1.0, (pen - d) * side + 0.5))))
    return bytes(image)


def strokes(count=1000):
    rnd = random.Random(20)
    labels = bytes(rnd.randrange(10) for _ in range(count))
    images = b"".join(digit(k, rnd) for k in labels)
    write(HERE / "strokes-images-idx3-ubyte.gz", struct.pack(">IIII", 0x803, count, 28, 28) + images)
    write(HERE / "strokes-labels-idx1-ubyte.gz", struct.pack(">II", 0x801, count) + labels)


def write(path, data):
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as f:
        f.write(data)


def shapes(count=160, side=32):
    """u8 [count, side, side, 3]: one disc or box on a plain ground, colours far apart."""
    rnd = random.Random(5)
    data = bytearray()
    for _ in range(count):
        ground = [rnd.randrange(0, 90) for _ in range(3)]
        colour = [rnd.randrange(120, 256) for _ in range(3)]
        x, y, r, disc = rnd.uniform(10, 22), rnd.uniform(10, 22), rnd.uniform(5, 9), rnd.random() < 0.5
        for row in range(side):
            for col in range(side):
                d = math.hypot(col + 0.5 - x, row + 0.5 - y) if disc else max(abs(col + 0.5 - x), abs(row + 0.5 - y))
                t = max(0.0, min(1.0, r - d + 0.5))
                data += bytes(round(g + t * (c - g)) for g, c in zip(ground, colour))
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count}, {side}, {side}, 3), }}"
    head += " " * (63 - (10 + len(head)) % 64) + "\n"
    (HERE / "shapes.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)


if __name__ == "__main__":
    strokes()
    shapes()
