"""What is right, from definitions: plain NumPy, SciPy and arithmetic of more digits."""
