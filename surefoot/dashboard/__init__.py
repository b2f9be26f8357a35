"""`surefoot ui`: a local page that shows runs live. Reads runs through `surefoot.runs` and writes nothing."""
