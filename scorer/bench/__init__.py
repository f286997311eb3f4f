"""The scorer alone: labelled rows in, measures, reports and gates out. No web tier and no socket, unless a URL is
asked."""
