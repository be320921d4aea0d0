"""The subcommands of ``xvarpro run`` that this package registers.

The command of an experiment returns its summary, and `SMALL` in its module, if there is one, holds the arguments with
which ``xvarpro run all --budget small`` calls it.
"""
