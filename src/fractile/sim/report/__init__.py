"""The folder that ``fractile simulate`` writes: tables, plots and a page."""
