"""What is right, from definitions: plain NumPy, SciPy and exact arithmetic that share nothing with the package."""
