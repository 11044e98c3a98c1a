"""Roles in Markdown files: reading, layers, frozen snapshots, diagnostics; it starts no child and grants no right."""
