"""`surefoot ui`: a local page that shows runs as they happen. Reads runs through `surefoot.runs` and writes nothing."""
