/* The memory of graphs: see graph.c. */
#ifndef FRACTILE_MEMORY_GRAPH_H
#define FRACTILE_MEMORY_GRAPH_H

void fr_graphs_trim(int card); /* what no graph uses goes back to the driver */

#endif
