"""A verdict as text, JSON, a JUnit file and a page."""
