"""The subcommands of ``xvarpro run``: a module here with a function `command` is one, under its own name.

An experiment's returns its summary, and its `SMALL` holds the arguments with which ``xvarpro run all`` calls it.
"""
