"""Local clusters, demonstrations, the chart and the chaos, on the real cluster."""
