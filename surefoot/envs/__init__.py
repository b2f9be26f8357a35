"""Actions → `Step`: environments of every make behind one contract. Never imports policies."""
