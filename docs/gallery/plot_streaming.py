"""
More rows than memory holds
===========================

What does a fit cost whose rows come in chunks? Here is 1 GB of them, with 64 features each, made when they are asked
for; in the same way they would be read from files. The figure shows that memory stays that of two chunks, however many
there are, and that time grows with their number.
"""

# %%
# A source starts a fresh pass each time it is called. Every chunk has 32 MB.

import time
import tracemalloc

import matplotlib.pyplot as plt
import numpy as np

import xvarpro as xv

rng = np.random.default_rng(0)
rows, features = 2**16, 64
block = rng.normal(size=(rows, features))
direction = rng.normal(size=features)
direction *= 0.8 / np.linalg.norm(direction)


def ramp(theta, x):
    xp = xv.array_namespace(theta)
    u = xp.log1p(xp.exp(x @ theta))  # rises smoothly from 0
    return xp.stack([u, xp.ones_like(u)], axis=1)


def source(chunks):
    def one_pass():
        for i in range(chunks):
            x = (1 + i / chunks) * block  # stands for what a file would give
            yield x, ramp(direction, x) @ [2.0, 0.5] + 0.1 * np.random.default_rng(i).normal(size=rows)

    return one_pass


# %%
# Value and gradient are two passes over all rows: of 1, 2, 4, 8, 16 and 32 chunks.

theta, sizes, seconds, peaks = np.full(features, 0.05), [1, 2, 4, 8, 16, 32], [], []
for chunks in sizes:
    problem = xv.separable(ramp, xv.RowChunks(source(chunks)))
    tracemalloc.start()
    start = time.perf_counter()
    xv.value_and_gradient(problem, theta)
    seconds.append(time.perf_counter() - start)
    peaks.append(tracemalloc.get_traced_memory()[1] / 2**20)
    tracemalloc.stop()
    print(f"{32 * chunks:4} MB of rows: {seconds[-1]:5.2f} s, peak memory {peaks[-1]:.0f} MB")

# %%
# A fit of the first chunk finds a good start; then all of them have their say.

over = xv.sets.L2Ball(1.0)
first = xv.solve(xv.separable(ramp, xv.RowChunks(source(1))), theta, over, tol=1e-3)
fit = xv.solve(problem, first.theta, over, tol=1e-3)
for name, found in (("first chunk", first), ("all chunks", fit)):
    error = np.linalg.norm(found.theta - direction) / np.linalg.norm(direction)
    print(f"{name}: {found.status.name}, {found.n_iter} iterations in {found.seconds:.1f} s, direction off by {error:.1e}")

# %%

figure, (memory, duration) = plt.subplots(1, 2, figsize=(8.5, 3.2))
megabytes = 32 * np.array(sizes)
memory.loglog(megabytes, megabytes, "--", color="0.6", base=2)
memory.loglog(megabytes, peaks, "o-", color="#0072b2", base=2)
memory.annotate("all rows in memory", (150, 300), color="0.5", ha="center", rotation=35)
memory.annotate("in chunks", (512, 75), color="#0072b2", ha="center")
memory.set(xlabel="rows (MB)", ylabel="peak memory (MB)", title="Memory is that of two chunks")
duration.plot(megabytes, seconds, "o-", color="#0072b2")
duration.set(xlabel="rows (MB)", ylabel="value and gradient (s)", ylim=(0, None), title="Time grows with the rows")
for axis in (memory.xaxis, memory.yaxis):
    axis.set_major_formatter("{x:.0f}")
plt.show()
