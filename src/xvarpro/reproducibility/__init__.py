"""The same solve on several backends, and results looked at again."""
