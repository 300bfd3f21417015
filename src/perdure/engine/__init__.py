"""The engine performs what `core` decides: hosts, sessions in memory, fibers, ops, alarms."""
