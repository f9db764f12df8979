/* The finder once more: a file of its own is loaded again, in whatever way it is opened first. */
#include "plugin_finder.c"
