"""The text of PDF documents, read by `pypdf` in processes that die of a document beyond the limits."""
