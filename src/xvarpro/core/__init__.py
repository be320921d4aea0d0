"""What everything else is built on: trees, status, checks, progress, the array namespace."""
