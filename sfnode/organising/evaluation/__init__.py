"""Evaluation before seals: line searches, evidence about members. Sans-IO."""
