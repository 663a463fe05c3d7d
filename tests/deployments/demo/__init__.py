"""The demo's own parts: claims, recording, report."""
