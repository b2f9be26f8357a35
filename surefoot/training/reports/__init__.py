"""What a run reports to people and programs: metrics, TensorBoard, trackers, the live table, warnings."""
