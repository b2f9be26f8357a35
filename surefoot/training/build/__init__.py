"""What a trainer is made of, and what is refused before it is made."""
