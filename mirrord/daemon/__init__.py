"""The composition root: the one room that wires all the others together."""
