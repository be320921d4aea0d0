"""FitBenchmarking with the controller of this folder, which its installation need not know of.

python run.py -o options.ini -p <folder of problems> [...], with the options of the command `fitbenchmarking`.
"""

import sys

import xvarpro_controller
from fitbenchmarking.cli.main import main
from fitbenchmarking.utils.options import Options

NAME = "xvarpro"


def register():
    """What a controller in FitBenchmarking's own folder has: a module there, and its minimizers among the options."""
    sys.modules[f"fitbenchmarking.controllers.{NAME}_controller"] = xvarpro_controller
    Options.VALID_FITTING["software"].append(NAME)
    for known in (Options.VALID_MINIMIZERS, Options.DEFAULT_MINIMZERS):
        known[NAME] = ["varpro", "lm"]


if __name__ == "__main__":
    register()
    main()
