"""From a problem and a start to a result: prepare, iterate, return."""
