"""The life of a run in its process: started, signalled, crashed, resumed; and whose code it may execute."""
