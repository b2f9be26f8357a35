"""`surefoot serve`: actions over HTTP. No torch."""
