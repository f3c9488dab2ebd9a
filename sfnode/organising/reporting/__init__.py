"""Reports on an organised run, which any node can give from decisions and results. Sans-IO."""
