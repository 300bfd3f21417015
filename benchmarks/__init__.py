"""Speed of perdure beside raw SQLite and beside its peers, all in one run."""
