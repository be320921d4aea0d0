"""Components without a grid: how many, where, and how strong."""
