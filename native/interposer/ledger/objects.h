/* Allocations that several processes of the container hold (IPC, exported handles, shared pools). The maker's account covers
 * the bytes as long as the maker holds the object. When it lets go or dies while others hold the object, the object gets an
 * account of its own, until the last holder is gone. A number >= 0 names an object. A process may hold an object several times
 * (exported and imported again): share and join count up, leave counts down.
 *
 *      export:  object = fr_object_share(card, bytes, key)       once for an allocation: its record keeps the number
 *      import:  object = fr_object_join(key)                     before the driver imports; leave again if that fails
 *               FR_NO_OBJECT: no process here holds it, so the importer pays: fr_op_begin, import, fr_object_share, fr_op_end;
 *               if fr_object_covers then returns false, another importer was first: fr_op_end keeps 0
 *      free:    bytes = object < 0 ? record.bytes : fr_object_leave(object)     after the driver let go
 *               fr_free_end(&op, bytes)
 *      pool that grew or shrank:  fr_object_resize(object, bytes)               by the maker, beside its fr_op_end */
#ifndef FRACTILE_LEDGER_OBJECTS_H
#define FRACTILE_LEDGER_OBJECTS_H

#include "ledger/descriptor.h"

#include <stdbool.h>
#include <stdint.h>

#define FR_NO_OBJECT (-1)
int fr_object_share(int card, uint64_t bytes, struct fr_key key); /* an existing object with this key is held once more. FR_NO_OBJECT: table full */
int fr_object_claim(int card, uint64_t bytes, struct fr_key key, bool *made); /* the same, and whether the object is new */
int fr_object_join(struct fr_key key);
uint64_t fr_object_leave(int object);                /* what now leaves this process's account, for fr_free_end: all its bytes if this
                                                        process covered them and no other holder is left; otherwise 0 */
void fr_object_unmake(int object);                   /* of one that was just made for memory that another thread frees meanwhile: nothing leaves the account */
int fr_object_card(int object);
uint64_t fr_object_bytes(int object);
bool fr_object_covers(int object);                   /* are the bytes in this process's account? */
void fr_object_resize(int object, uint64_t bytes);
bool fr_object_charge(int object, struct fr_key key, uint64_t bytes); /* charges the object with this many more bytes, even above the quota;
                                                        false: it has no holder any more. 0 bytes: only tests that */
/* Announces an import whose owner is not known: the memory may be the container's own, and the import holds it although no
 * account says so. Until the import ends, no charge of exported memory goes back. FR_NO_OBJECT: the table is full, so the
 * import may not begin. */
int fr_look_begin(void);
void fr_look_end(int look);

bool fr_object_by_descriptor(int object, struct fr_key *key); /* gives it a descriptor's key, unless it has one, which *key then is; the key
                                                        that it had becomes a second name. False: table full */
bool fr_object_also(int object, struct fr_key key);  /* a second name: another kind of handle, another small piece of a shared granule.
                                                        Goes with the object; false: table full, importers by this name pay */

#endif
