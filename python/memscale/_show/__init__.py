"""Everything that people read: figures, sentences, bars, pages and drawings."""
