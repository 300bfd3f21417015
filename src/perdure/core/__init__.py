"""Pure decisions over plain facts: no await, no clock, no I/O, standard library only."""
