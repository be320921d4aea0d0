from xvarpro.backends.group import Group
from xvarpro.backends.torch_group import TorchGroup
from xvarpro.distributed.dask import dask_rows

__all__ = ["Group", "TorchGroup", "dask_rows"]
