"""Reports of an organised run: what any node can tell of it, from decisions and results. Sans-IO."""
