"""The pieces of the viewer: where a quote stands in a page, its text as lines, and the process that draws pages."""
