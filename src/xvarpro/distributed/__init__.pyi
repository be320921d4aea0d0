from xvarpro.backends.torch_group import TorchGroup
from xvarpro.distributed.dask import dask_rows

__all__ = ["TorchGroup", "dask_rows"]
