"""MLX as a backend of xvarpro: the example of docs/plugins.md."""

from xvarpro_mlx.backend import MLXBackend

__all__ = ["MLXBackend"]
