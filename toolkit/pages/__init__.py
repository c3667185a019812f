"""HTML pages that load no other files: elements, the frame of a document, its style, tables and curves."""
