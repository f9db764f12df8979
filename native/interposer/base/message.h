/* One line on stderr, once per topic and process. */
#ifndef FRACTILE_BASE_MESSAGE_H
#define FRACTILE_BASE_MESSAGE_H

enum fr_topic { FR_SAY_LIMITS, FR_SAY_REGION, FR_SAY_DRIVER, FR_SAY_SYMBOL, FR_SAY_CARD, FR_SAY_FULL, FR_SAY_ARBITER, FR_SAY_IMAGE, FR_SAY_FOREIGN, FR_TOPICS };
void fr_say(enum fr_topic topic, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
