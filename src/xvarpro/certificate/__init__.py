"""The lowest minimum over a box of theta: branch and bound, with lower bounds that hold whatever w is."""
