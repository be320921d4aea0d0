"""Where w may lie: affine subspaces, orthants, boxes."""
