/*
 * Calls on freed objects. A free function clears the record of its object, except for a mark that the object was freed.
 * It then keeps the record for a while: objects of the layer comm with ls_keep_freed, and objects of higher layers with
 * ls_retire (tensor/scope.h). A function that gets the object reads the mark, and fails with ls_fail_freed. A second
 * free reads the mark, and does nothing.
 */
#ifndef LS_BASE_FREED_H
#define LS_BASE_FREED_H

#include "base/status.h"

/* Fails with LS_ERR_STATE: the object, for example "optimizer", was freed by the public function `function`. Returns
 * the status. */
ls_status ls_fail_freed(const char *call, const char *object, const char *function);

/*
 * Takes ownership of a cleared record. The record must come from the C library's malloc, because it may outlive an
 * allocator that was set with ls_set_allocator. All threads of the process share the kept records. If too many records
 * are kept, frees the oldest record.
 */
void ls_keep_freed(void *record);

#endif
