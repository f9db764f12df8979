/* An exported descriptor carries the number of its object, wherever it is sent (see descriptor.c). */
#ifndef FRACTILE_LEDGER_DESCRIPTOR_H
#define FRACTILE_LEDGER_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

struct fr_key { uint64_t a, b; };

#define FR_KEY_DESCRIPTOR 0x66642d6f626a6563ull      /* key.a of an object that descriptors keep alive */
struct fr_key fr_descriptor_key(void);               /* a new random key */
int fr_descriptor_copy(int fd);                      /* a duplicate of the same open file, for the library alone; -1: none */
bool fr_descriptor_mark(int fd, struct fr_key key);  /* lasts until its last copy is closed */
bool fr_descriptor_read(int fd, struct fr_key *key); /* false: it carries no mark */
bool fr_descriptor_open(struct fr_key key);          /* is a marked one still open in any process, or in a message on its way? The driver keeps
                                                        the memory that long, so objects.c checks before an object's last bytes go */

#define FR_DESCRIPTORS_AT_ONCE 64
void fr_descriptors_open(const struct fr_key *keys, bool *open, uint32_t count); /* the same for several keys, with as many looks as for one */

#endif
