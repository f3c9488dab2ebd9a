"""Evaluation before seals: line searches, evidence about members, panels of validators. Sans-IO."""
