"""
More rows than memory holds
===========================

What does a fit cost whose rows come in chunks? Here are 512 MB of them, with 64 features each, made when they are asked
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
# A fit of the first chunk finds a good start for a fit of four, 128 MB.


def fit_of(chunks, theta):
    problem = xv.separable(ramp, xv.RowChunks(source(chunks)))
    fit = xv.solve(problem, theta, xv.sets.L2Ball(1.0), tol=1e-2)
    off = np.linalg.norm(fit.theta - direction) / np.linalg.norm(direction)
    print(f"{chunks} chunks: {fit.status.name} after {fit.n_iter} iterations, direction off by {100 * off:.2f} %")
    return fit


first = fit_of(1, np.full(features, 0.05))
fit = fit_of(4, first.theta)

# %%
# Time and memory of an objective and its gradient, two passes over up to 512 MB of rows.

sizes, seconds, peaks = [2, 4, 8, 16], [], []
for chunks in sizes:
    tracemalloc.start()
    start = time.process_time()
    xv.value_and_gradient(xv.separable(ramp, xv.RowChunks(source(chunks))), fit.theta)
    seconds.append(time.process_time() - start)
    peaks.append(tracemalloc.get_traced_memory()[1] / 2**20)
    tracemalloc.stop()
    print(f"{32 * chunks:4} MB of rows: {seconds[-1]:.2f} s of the processor, peak memory {peaks[-1]:.0f} MB")

# %%

figure, (memory, duration) = plt.subplots(1, 2, figsize=(8.5, 3.2))
megabytes = 32 * np.array(sizes)
memory.loglog(megabytes, megabytes, "--", color="0.6", base=2)
memory.loglog(megabytes, peaks, "o-", color="#0072b2", base=2)
memory.annotate("all rows in memory", (150, 230), color="0.5", ha="center", rotation=35)
memory.annotate("in chunks", (256, 75), color="#0072b2", ha="center")
memory.set(xlabel="rows (MB)", ylabel="peak memory (MB)", title="Memory is that of two chunks")
duration.plot(megabytes, seconds, "o-", color="#0072b2")
duration.set(xlabel="rows (MB)", ylabel="processor time (s)", ylim=(0, None), title="Time grows with the rows")
for axis in (memory.xaxis, memory.yaxis):
    axis.set_major_formatter("{x:.0f}")
plt.show()
