"""Where w may lie, and what it may cost: affine subspaces, orthants, boxes, simplices, an l1 penalty."""
