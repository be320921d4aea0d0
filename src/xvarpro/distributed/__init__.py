"""Problems whose data lie in several processes or on several machines, on engines that exist."""

from xvarpro.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
