"""The subcommands of ``xvarpro run``: a module here with a function `command` is one, under its own name."""
