"""The life of a run in its process: start, signals, crashes, resume, and which code it may execute."""
