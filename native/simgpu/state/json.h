/* A strict reader of JSON texts (RFC 8259), just large enough for the cards file. It reads from front to back and builds no tree. */
#ifndef SIMGPU_JSON_H
#define SIMGPU_JSON_H

#include <stdbool.h>
#include <stddef.h>

struct json {
    const char *text, *at;
    char error[160]; /* empty while there is no error */
};

struct json json_open(const char *text);
bool json_fail(struct json *j, const char *what);
bool json_begin(struct json *j, char bracket);                           /* '[' or '{' */
bool json_more(struct json *j, char bracket, bool *first);               /* ']' or '}': is there another member? */
bool json_key(struct json *j, char *out, size_t size);
bool json_string(struct json *j, char *out, size_t size);
bool json_number(struct json *j, double *out);
bool json_skip(struct json *j, int depth);
bool json_end(struct json *j);
char json_peek(struct json *j);

#endif
