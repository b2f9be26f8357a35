"""What a run tells people and other programs: rows, events, trackers, the live table, advice."""
