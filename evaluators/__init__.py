"""What is measured of a model while and after it trains."""
