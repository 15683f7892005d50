"""The metadata prefilter: which nodes satisfy a filter, known before any vector or text is looked at."""
