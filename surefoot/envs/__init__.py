"""Actions → `Step`: all kinds of environments behind one contract. Never imports policies."""
