/* One line on stderr, once per topic and process; it starts with "warning: " where nothing is refused.
 * docs/reference/messages.md lists the messages. */
#ifndef FRACTILE_BASE_MESSAGE_H
#define FRACTILE_BASE_MESSAGE_H

enum fr_topic { FR_SAY_LIMITS, FR_SAY_REGION, FR_SAY_DRIVER, FR_SAY_SYMBOL, FR_SAY_CARD, FR_SAY_FULL, FR_SAY_ARBITER, FR_SAY_REACH, FR_SAY_IMAGE, FR_SAY_FOREIGN, FR_SAY_CONTEXT, FR_TOPICS };
void fr_say(enum fr_topic topic, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The consequence of invalid files, and the remedy; --replace, because one of the two files exists in most cases. A directory
 * that was removed from the node cannot be repaired in a container that still has it mounted. */
#define FR_NOTHING_IS_HELD ": this container may hold no GPU memory until it is put right (the node's agent writes it; if the pod has the event GPUDirectoryLost, delete the pod; by hand: fractile-slice create DIR --card UUID=AMOUNT --replace)"

/* The table that counts objects for all processes is full; the code that finds it full adds what follows from that. */
#define FR_OBJECTS_FULL "the container's table of shared allocations is full (a larger one, of 1024 at most: fractile-slice create --objects N --replace)"

#endif
