/* The table of objects in the region (see objects_table.c; objects.c has the states of an object). */
#ifndef FRACTILE_LEDGER_OBJECTS_TABLE_H
#define FRACTILE_LEDGER_OBJECTS_TABLE_H

#include "ledger/shared.h"

#include "region.h"

#include <stdbool.h>
#include <stdint.h>

struct fr_object;

#define FR_HOLDER_WORDS (FR_MAX_SLOTS / 64)

struct fr_object *fr_object_at(uint32_t n);
uint32_t fr_objects_in_use(void);
bool fr_object_is_live(uint32_t n);
bool fr_object_is_covered_by(struct fr_object *o, uint32_t slot);
bool fr_object_is_held_by_others(struct fr_object *o, uint32_t slot);
bool fr_object_is_left(uint32_t n); /* no process holds it, and it has an account of its own */
bool fr_object_card_is_sound(const struct fr_object *o);
bool fr_object_descriptor_is_open(const struct fr_object *o);

#define FR_KEY_LOOK 0x6c6f6f6b5f6f626aull /* key.a of the object that a process holds during a look (fr_look_begin) */
bool fr_objects_are_looked_at(void);

/* With the lock of objects: */
void fr_object_set_holder(struct fr_object *o, uint32_t slot, bool holds);
void fr_object_set_state(struct fr_object *o, enum fr_object_state state);
void fr_object_free(uint32_t n);
void fr_object_add_own(uint32_t n, int64_t units); /* to an object that no process covers */
void fr_object_release_own(uint32_t n);
void fr_objects_drop(uint32_t slot); /* ends a dead slot's part in its objects; the caller has locked the slot's byte */

#endif
