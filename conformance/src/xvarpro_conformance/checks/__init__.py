"""The statements of the suite, a module for each area; a module that is put here is found."""
