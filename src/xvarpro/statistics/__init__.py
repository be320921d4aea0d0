"""What people who fit data ask of a fit: robust losses."""
