"""Other durable runtimes, each run in its own environment by a script with the floor's interface."""
