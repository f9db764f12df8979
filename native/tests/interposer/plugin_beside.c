/* A copy of the finder: a separate file, so that it is loaded separately, however the finder was opened before. */
#include "plugin_finder.c"
