"""Worked problems with their rivals."""
