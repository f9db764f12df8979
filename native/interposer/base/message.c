/* Messages to the user: one line on stderr, once per topic and process. Without stdio and allocation, so that any code may call
 * it. In a program that has closed stderr the message is lost and the program goes on. */
#include "base/message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic int said_by[FR_TOPICS];

void fr_say(enum fr_topic topic, const char *format, ...)
{
    int before = errno, self = (int)getpid();
    if (atomic_exchange(&said_by[topic], self) == self) return;
    char line[512] = "fractile: ";
    size_t length = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    if (more > 0) length += (size_t)more;
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0) { /* stderr is closed */ }
    errno = before;
}
