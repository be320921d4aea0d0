"""
Archetypes: samples as mixtures of extreme ones
===============================================

Of which few extreme samples are the others mixtures? Archetypal analysis answers that for irises and for digits. The
figure shows the flowers with the triangle of their three archetypes, the shares of the archetypes in every flower, and
eight archetypes of digits.
"""

# %%
# ``ArchetypalAnalysis`` minimises ``1/2 |S B X - X|^2``: the archetypes ``B X`` are mixtures of samples, and all
# samples are mixtures of archetypes. The shares S are eliminated exactly.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, load_iris

from xvarpro.sklearn import ArchetypalAnalysis

iris = load_iris()
flowers, species = iris.data, iris.target
model = ArchetypalAnalysis(3, random_state=0).fit(flowers)
shares = model.transform(flowers)
print(f"{model.status_.name}, explained of the sum of squares: {model.score(flowers):.2%}")
print("sums of the shares of a flower are off 1 by", abs(shares.sum(axis=1) - 1.0).max())

# %%
# ``mixtures_`` has the samples that an archetype is made of: a few each.

for i, row in enumerate(model.mixtures_, start=1):
    made_of = [f"{row[j]:.2f} of a {iris.target_names[species[j]]}" for j in np.argsort(-row)[:3] if row[j] > 0.01]
    print(f"archetype {i}: {', '.join(made_of)}")

# %%
# The same for 500 images of digits, with more archetypes.

digits = load_digits().data[:500] / 16.0
extremes = ArchetypalAnalysis(8, random_state=0).fit(digits)
print(f"digits: {extremes.status_.name}, explained {extremes.score(digits):.1%} with 8 archetypes")

# %%
# On the left the four measurements of a flower are seen along two axes. In the middle the same flowers are drawn by
# their shares, in a triangle whose corners are the archetypes: one on an edge has no share of the third.

figure, (cloud, triangle, images) = plt.subplots(1, 3, figsize=(10.0, 3.6), width_ratios=[1.1, 1.0, 0.55])
looks = [("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "^")]
corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]])
archetypes = model.components_[:, [2, 1]]  # petal length and sepal width
for axes, points in ((cloud, archetypes), (triangle, corners)):
    axes.plot(*points[[0, 1, 2, 0]].T, color="0.4", linewidth=1)
for kind, (color, marker) in enumerate(looks):
    own = species == kind
    cloud.scatter(flowers[own, 2], flowers[own, 1], s=14, color=color, marker=marker)
    triangle.scatter(*(shares[own] @ corners).T, s=14, color=color, marker=marker)
for i, (color, x, y) in enumerate([("#0072b2", 2.0, 4.2), ("#d55e00", 4.4, 2.0), ("#009e73", 4.9, 3.9)]):
    cloud.text(x, y, iris.target_names[i], color=color)
for i, (x, y) in enumerate(corners):
    triangle.text(x, y + (0.04 if y else -0.1), f"archetype {i + 1}", ha="center")
    away = 1.12 * archetypes[i] - 0.12 * archetypes.mean(axis=0)
    cloud.text(*away, i + 1, fontweight="bold", ha="center", va="center")
cloud.set(xlabel="petal length, cm", ylabel="sepal width, cm")
cloud.set_title("Irises and the triangle of three")
triangle.set(aspect="equal", xlim=(-0.2, 1.2), ylim=(-0.15, 1.0))
triangle.set_title("Shares of the archetypes")
tiles = [np.pad(x.reshape(8, 8), 1, constant_values=np.nan) for x in extremes.components_]
grey = plt.colormaps["Greys"].with_extremes(bad="0.85")
images.imshow(np.vstack([np.hstack(tiles[i : i + 2]) for i in range(0, 8, 2)]), cmap=grey, vmin=0, vmax=1)
images.set_title("Extreme digits")
for axes in (triangle, images):
    axes.set_axis_off()
plt.show()
