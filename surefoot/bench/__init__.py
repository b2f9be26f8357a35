"""How fast this installation trains."""
