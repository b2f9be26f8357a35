"""Translates a `Program` to C99 that needs no library and allocates nothing."""
