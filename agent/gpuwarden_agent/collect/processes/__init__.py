"""Reads GPU processes with their process trees and owners from /proc and control groups."""
