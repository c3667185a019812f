"""Pages of HTML that load nothing: elements, the frame of a document, its style, tables and curves."""
