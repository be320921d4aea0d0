"""What comes back: results, traces, figures, files."""
