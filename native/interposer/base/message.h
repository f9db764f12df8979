/* One line on stderr, once per topic and process; "warning: " where nothing is refused. docs/reference/messages.md lists them. */
#ifndef FRACTILE_BASE_MESSAGE_H
#define FRACTILE_BASE_MESSAGE_H

enum fr_topic { FR_SAY_LIMITS, FR_SAY_REGION, FR_SAY_DRIVER, FR_SAY_SYMBOL, FR_SAY_CARD, FR_SAY_FULL, FR_SAY_ARBITER, FR_SAY_REACH, FR_SAY_IMAGE, FR_SAY_FOREIGN, FR_TOPICS };
void fr_say(enum fr_topic topic, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What follows from files that are wrong, and the remedy; --replace, as one of the two files is there in most cases. A
 * directory that was removed from the node cannot be put right in a container that holds it. */
#define FR_NOTHING_IS_HELD ": this container may hold no GPU memory until it is put right (the node's agent writes it; if the pod has the event GPUDirectoryLost, delete the pod; by hand: fractile-slice create DIR --card UUID=AMOUNT --replace)"

/* Where objects are counted for all processes; what follows is said by who finds it full. */
#define FR_OBJECTS_FULL "the container's table of shared allocations is full (a larger one, of 1024 at most: fractile-slice create --objects N --replace)"

#endif
