"""What a user states: levels, targets and rows in chunks, problems loaded by name."""
