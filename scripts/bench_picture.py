# SPDX-License-Identifier: MIT
"""The figures of scripts/bench as a picture, by gnuplot: each against its reach, and the rate of each number of disks.

A bar ends at how many times better than its reach a figure is, on a logarithmic scale; left of 1 it has missed it.
"""

import math
import shutil
import subprocess

WIDTH, ROW, TITLE, AXIS, RATES = 1100, 22, 40, 60, 280  # pixels
LONGEST = 10  # a bar that is better than so many times its reach is cut off there


def rows(result, reach):
    """(name, times better than its reach, its value as text), in the order of the table."""
    found = []
    for key, (sign, least) in reach.items():
        value = result.get(key)
        if isinstance(value, dict):
            for n, times in least.items():
                one = value[n] / value["1"]
                found.append((f"{key} {n}", one / times, f"{one:.2f} times one, {sign} {times}"))
        elif value is not None:
            least = result["raw"].get(key, {}).get("reach", least)
            better = value / least if sign == ">=" else least / value if value > 0 else LONGEST
            found.append((key, max(better, 1 / LONGEST), f"{value:.4g}, {sign} {least:.4g}"))
    return found


def text(s):
    """For gnuplot, between double quotes; '_' is no subscript."""
    return s.replace("\\", "").replace('"', "").replace("_", "\\\\_")


def place(top, bottom):
    return [f"set {side}margin at screen {at:.4f}"
            for side, at in (("l", 0.30), ("r", 0.97), ("t", top), ("b", bottom))]


def bars(figures, top, bottom):
    n = len(figures)
    low = min([0.5] + [better / 1.1 for _, better, _ in figures])
    lines = [*place(top, bottom), "set logscale x", "unset key", "set grid x", "set style fill solid 0.85",
             f"set xrange [{low:.3f}:{LONGEST * 2.5}]", f"set yrange [-0.7:{n - 0.3}]", "set xlabel 'times its reach'",
             "set arrow 1 from 1, graph 0 to 1, graph 1 nohead lw 2 lc rgb '#333333' front",
             "set ytics (" + ", ".join(f'"{text(name)}" {n - 1 - i}' for i, (name, _, _) in enumerate(figures)) + ")"]
    data = []
    for i, (_, better, said) in enumerate(figures):
        y, end = n - 1 - i, min(better, LONGEST)
        colour = 0x2E7D6B if better >= 1 else 0xC0392B
        data.append(f"{end:.5f} {y} {min(1, end):.5f} {max(1, end):.5f} {y - 0.36} {y + 0.36} {colour}")
        lines.append(f'set label {i + 1} "{text(said)}" at {max(1, end) * 1.03:.4f},{y} left font ",9" front')
    return lines + ["$bars << END", *data, "END", "plot $bars using 1:2:3:4:5:6:7 with boxxyerror lc rgb variable"]


def rates(values, top, bottom):
    """The stripes' rates, beside what that many times one would be."""
    data = [f"{n} {v:.4f} {values['1'] * int(n):.4f}" for n, v in values.items()]
    most = math.ceil(10 * values["1"] * 8 + 0.5) / 10
    return [*place(top, bottom), "unset label", "unset arrow", "unset logscale", "set key left top", "set xrange [0:9]",
            f"set yrange [0:{most}]", "set xlabel 'disks of 100 MB/s'", "set ylabel 'GiB/s'",
            "set xtics (1, 2, 4, 8)", "set ytics autofreq", "set grid y", "$rates << END", *data, "END",
            "plot $rates using 1:3 with lines lw 2 dt 2 lc rgb '#999999' title 'as many times one', "
            "$rates using 1:2 with linespoints lw 2 pt 7 ps 1.4 lc rgb '#2E7D6B' title 'stripes'"]


def draw(result, reach, path):
    """Makes `path`. Returns why not, or None."""
    figures = rows(result, reach)
    if not shutil.which("gnuplot"):
        return "there is no gnuplot"
    if not figures:
        return "there are no figures"
    below = RATES if "stripes" in result else 0
    height = TITLE + ROW * len(figures) + AXIS + below
    machine = result.get("machine", {})
    title = f"fastckpt: what it costs and gains here (Linux {machine.get('kernel')}, {machine.get('cpus')} CPUs)"
    lines = [f"set terminal pngcairo size {WIDTH},{height} font 'Sans,10'", f"set output '{path}'",
             f'set multiplot title "{text(title)}" font ",12"',
             *bars(figures, 1 - TITLE / height, (below + AXIS) / height)]
    if below:
        lines += rates(result["stripes"], (below - 15) / height, AXIS / height)
    lines += ["unset multiplot", "unset output", ""]
    r = subprocess.run(["gnuplot"], input="\n".join(lines), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       timeout=60)
    return f"gnuplot: {r.stdout.strip()[-200:]}" if r.returncode else None
