from xvarpro.backends.group import Group
from xvarpro.backends.torch_group import TorchGroup
from xvarpro.distributed.dask import dask_rows
from xvarpro.distributed.many import dask_solve_many

__all__ = ["Group", "TorchGroup", "dask_rows", "dask_solve_many"]
