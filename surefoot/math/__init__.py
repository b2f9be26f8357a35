"""Pure functions of the mathematics: formula in the docstring, shapes checked at the door."""
